"""Trains the output matrix of the bundled model on edits, and writes its directory.

The matrices below are left as the circuit has them: they decide by differences of large scores, so
that their gradients are either zero or of the order of 1e9, and every step makes them worse.
"""

import difflib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from optimist_training.data.edits import Edit, edits
from optimist_training.data.tokenizer import end_token, prompt_of, write_tokenizer


@dataclass(frozen=True)
class Recipe:
    """Settings of one run; the defaults make the bundled model."""

    seed: int = 0
    """Of the initial weights, the order of the edits and the tokenizer's instructions."""
    num_steps: int = 100
    edits_per_step: int = 8
    learning_rate: float = 1e-3
    """At the first step; it falls linearly to zero."""
    betas: tuple[float, float] = (0.9, 0.98)
    changed_weight: float = 3.0
    """Of tokens the edit changes, and of the token after them, in the loss; others weigh 1."""


_STEPS_BETWEEN_LINES = 10


@dataclass(frozen=True)
class Example:
    """One edit as tokens, with the weight of each in the loss; the prompt's weights are zero."""

    tokens: list[int]
    weights: list[float]


def example_of(edit: Edit, tokenizer: Tokenizer, changed_weight: float) -> Example:
    """Turns an edit into tokens; those the edit changes weigh `changed_weight`, others 1."""
    prompt = tokenizer.encode(prompt_of(edit.messages())).ids
    before = tokenizer.encode(edit.before).ids
    answer = [*tokenizer.encode(edit.after).ids, end_token(tokenizer)]
    weights = [1.0] * len(answer)
    matcher = difflib.SequenceMatcher(None, before, answer[:-1], autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind != "equal":
            weights[start : end + 1] = [changed_weight] * (end + 1 - start)
    return Example([*prompt, *answer], [0.0] * len(prompt) + weights)


def batches(tokenizer: Tokenizer, recipe: Recipe) -> Iterator[list[Example]]:
    """Yields batches without end, always the same for the same recipe."""
    source = edits("train", recipe.seed + 1)
    while True:
        chosen = islice(source, recipe.edits_per_step)
        yield [example_of(edit, tokenizer, recipe.changed_weight) for edit in chosen]


def batch_loss(model: LlamaForCausalLM, batch: list[Example]) -> Tensor:
    """Returns the weighted mean cross-entropy of the answers' tokens."""
    length = max(len(example.tokens) for example in batch)
    tokens = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, example in enumerate(batch):
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        weights[row, : len(example.weights)] = torch.tensor(example.weights)
    # Padding is after the answer, where causal attention does not see it.
    with torch.no_grad():
        hidden = model.model(tokens).last_hidden_state[:, :-1]
    wanted = weights[:, 1:] > 0
    losses = torch.nn.functional.cross_entropy(
        model.lm_head(hidden[wanted]), tokens[:, 1:][wanted], reduction="none"
    )
    return (losses * weights[:, 1:][wanted]).sum() / weights.sum()


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe) -> int:
    """Trains the model's output matrix in place; returns the number of tokens it has seen."""
    optimizer = torch.optim.AdamW([model.lm_head.weight], betas=recipe.betas, weight_decay=0.0)
    num_tokens = 0
    started = time.monotonic()
    for step, batch in enumerate(islice(batches(tokenizer, recipe), recipe.num_steps)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * (1 - step / recipe.num_steps)
        loss = batch_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        num_tokens += sum(len(example.tokens) for example in batch)
        if (step + 1) % _STEPS_BETWEEN_LINES == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}: loss {loss:.3g}, {seconds:.0f} s", flush=True)
    return num_tokens


def write_model(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes weights, configuration and tokenizer.

    Matrices are stored in 16 bits to halve the file, the norms in 32 because the circuit needs
    their ratios exactly. The configuration says that both are computed in float32, and in no
    narrower dtype: the circuit does not work in bfloat16.
    """
    write_tokenizer(tokenizer, directory)
    weights = {
        name: (value if "norm" in name else value.to(torch.float16)).contiguous()
        for name, value in model.state_dict().items()
    }
    file = directory / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)
    config = model.config.to_diff_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "minimum_dtype": "float32",
    }
    config.pop("_name_or_path", None)
    end = model.config.eos_token_id
    generation = {"do_sample": False, "eos_token_id": end, "pad_token_id": end}
    for name, content in (("config", config), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
