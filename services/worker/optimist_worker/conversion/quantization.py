"""What rounding its weights costs a model in quality, and gains in time."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from optimist_common.model_files.directory import check_model
from optimist_worker.core.attention.paged_attention import AttentionBatch, KVPool
from optimist_worker.model.fused import fuse
from optimist_worker.model.model import Model, load_model
from optimist_worker.model.rounding import Bits
from optimist_worker.model.source import read_source

_FLAG = "--model"


@dataclass(frozen=True, slots=True)
class Reference:
    """A text that the model wrote in float32, and what it expected at each of its tokens."""

    token_ids: list[int]
    start: int
    """First token that the model wrote."""
    log_probabilities: torch.Tensor
    """Of the tokens from `start` on, `[num_tokens, vocab_size]`."""


def set_threads(number: int) -> None:
    """Sets how many threads compute; 0 leaves it to PyTorch."""
    if number:
        torch.set_num_threads(number)


def load_float32(name: str) -> Any:
    """Loads a model as transformers runs it; raises SetupError, which begins with --model."""
    check_model(name, _FLAG, needs_weights=True)
    read_source(name, _FLAG)
    auto_model: Any = AutoModelForCausalLM
    module = auto_model.from_pretrained(
        name, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    return module.eval().requires_grad_(False)


@torch.inference_mode()
def predict(module: Any, token_ids: Sequence[int], start: int) -> torch.Tensor:
    """Returns log-probabilities of the tokens from `start` on, `[num_tokens, vocab_size]`."""
    ids = torch.tensor([list(token_ids)], device=module.device)
    logits: torch.Tensor = module(ids, use_cache=False).logits[0, start - 1 : -1]
    return logits.float().log_softmax(-1)


@torch.inference_mode()
def write_references(
    name: str, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Reference]:
    """Writes greedy texts by transformers' own modules in float32; raises as `load_float32`."""
    module, references = load_float32(name), []
    for prompt in prompts:
        inputs = torch.tensor([list(prompt)])
        ids = module.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        token_ids, start = ids[0].tolist(), len(prompt)
        references.append(Reference(token_ids, start, predict(module, token_ids, start)))
    return references


@torch.inference_mode()
def compare(name: str, bits: Bits | None, references: Sequence[Reference]) -> dict[str, float]:
    """Compares a model in bfloat16, as the worker serves it on a CPU, with float32.

    Returns `kl_wide` and `kl_narrow`: mean Kullback-Leibler divergence from float32 of
    distributions from one pass over a whole text and from passes of one token, in nats;
    `agreement_wide` and `agreement_narrow`: share of tokens with the same likeliest one; `step_ms`:
    median time of a pass of one token. Raises SetupError if the model cannot be loaded or rounded.
    """
    model = load_model(name, "bfloat16", "cpu")
    fuse(model, bits)
    sums = dict.fromkeys(("kl_wide", "kl_narrow", "agreement_wide", "agreement_narrow"), 0.0)
    seconds: list[float] = []
    for reference in references:
        length = len(reference.token_ids)
        pool = KVPool(model.layers, 1, length, model.dtype, model.device)
        wide = run_tokens(model, pool, reference.token_ids, 0)[reference.start - 1 : -1]
        narrow = []
        for index in range(reference.start - 1, length - 1):
            begin = time.perf_counter()
            narrow.append(run_tokens(model, pool, reference.token_ids[index : index + 1], index))
            seconds.append(time.perf_counter() - begin)
        expected = reference.log_probabilities
        for width, logits in (("wide", wide), ("narrow", torch.cat(narrow))):
            found = logits.float().log_softmax(-1)
            divergence = functional.kl_div(found, expected, log_target=True, reduction="sum")
            sums[f"kl_{width}"] += float(divergence)
            sums[f"agreement_{width}"] += float((found.argmax(-1) == expected.argmax(-1)).sum())
    total = sum(len(reference.log_probabilities) for reference in references)
    report = {key: value / total for key, value in sums.items()}
    return report | {"step_ms": statistics.median(seconds) * 1e3}


def run_tokens(model: Model, pool: KVPool, token_ids: Sequence[int], start: int) -> torch.Tensor:
    """Runs tokens from an index on; returns logits, `[num_tokens, vocab_size]`."""
    batch = AttentionBatch.of_row(pool, start, start + len(token_ids))
    output = model.module(
        input_ids=torch.tensor([list(token_ids)]),
        position_ids=batch.positions[None],
        use_cache=False,
        paged=batch,
    )
    logits: torch.Tensor = output.logits[0]
    return logits
