"""Draft models with other vocabularies or fewer positions than their target: the text is the same.

vllm-project/vllm#5203, #7252 (151,936 rows of embeddings against 152,064) and #57941, #24662.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import StepResult
from optimist_worker.drafters.build import build_drafter
from optimist_worker.model.fused import fuse
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import SIZES, build_runner, generate, local_runner, plain_text

FEWER, MORE = VOCAB_SIZE - 60, VOCAB_SIZE + 64
KNOWN = [5, 9, 200, 17, 44, 44, 8, 130, 77, 201]
"""A prompt of tokens that all know."""
UNKNOWN = [5, FEWER + 3, 200, VOCAB_SIZE - 1, 44, 8, FEWER]
SAMPLINGS = [SamplingParams(), SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.2)]
NUM_TOKENS = 30


def save_resized(target: Path, directory: Path, vocab_size: int) -> Path:
    """Saves the target with another number of ids: the first ones are the same."""
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)
    model.resize_token_embeddings(vocab_size, mean_resizing=False)
    model.save_pretrained(directory)
    return directory


def save_gpt2(directory: Path, num_positions: int) -> Path:
    """Saves a model with a table of positions; fewer of them are the first ones."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 2}
    auto_model: Any = AutoModelForCausalLM
    model = auto_model.from_config(GPT2Config(n_positions=256, **sizes))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln" not in name:
                parameter.normal_(0.0, 0.2, generator=generator)
        positions = model.transformer.wpe.weight[:num_positions].clone()
    model.config.n_positions = num_positions
    model.transformer.wpe = torch.nn.Embedding(num_positions, 32, _weight=positions)
    model.save_pretrained(directory)
    return directory


def runner_of(target_path: Path, draft_path: Path, **options: Any) -> Runner:
    reads_sizes = options.pop("reads_sizes", True)
    rule = options.pop("rule", AcceptanceRule.COUPLED)
    target, draft = (load_model(str(path), "float64", "cpu") for path in (target_path, draft_path))
    fuse(target)
    fuse(draft)
    state = DeviceState(target, SIZES, reads_sizes=reads_sizes)
    values = {"model": str(target_path), "drafter": "draft_model", "drafter_tokens": 4}
    values |= {"max_num_batched_tokens": 512, "acceptance": rule, **options}
    drafter, tap = build_drafter(WorkerSettings.model_validate(values), draft, target, state)
    return local_runner(target, state, drafter, tap, rule)


def write(runner: Runner, prompt: list[int], sampling: SamplingParams) -> tuple[list[int], Any]:
    """Returns a text, and how many drafts were accepted by the length before."""
    accepted: dict[int, int] = {}

    def note(result: StepResult) -> None:
        before = int(result.lengths[0] - result.num_emitted_tokens[0])
        accepted[before] = int(result.num_accepted_tokens[0])

    text = generate(runner, prompt, NUM_TOKENS, sampling=sampling, width=4, note=note)
    drafter = runner.engine.drafter
    assert drafter is not None
    assert drafter.num_failures == 0
    return text, accepted


WAYS: dict[str, dict[str, Any]] = {
    "reads sizes": {},
    "pads": {"reads_sizes": False},
    "discard": {"drafter_kv": "discard"},
    "tree": {"drafter_tree": "dynamic", "drafter_depth": 2, "drafter_width": 2},
}


@pytest.mark.parametrize(
    ("vocab_size", "way"), [(FEWER, "reads sizes"), (FEWER, "tree"), (MORE, "pads")]
)
def test_other_ids(
    llama_path: Path, llama: Runner, tmp_path: Path, vocab_size: int, way: str
) -> None:
    draft = save_resized(llama_path, tmp_path / "draft", vocab_size)
    runner = runner_of(llama_path, draft, **WAYS[way])
    for prompt, sampling in zip((KNOWN, UNKNOWN), SAMPLINGS, strict=True):
        plain = plain_text(llama, prompt, NUM_TOKENS, sampling)
        text, accepted = write(runner, prompt, sampling)
        assert text == plain
        assert any(token >= FEWER for token in text)
        assert sum(accepted.values()) > 0
        sequence = prompt + text
        for length, number in accepted.items():
            drafted = sequence[length - 1 : length + number]
            assert vocab_size == MORE or all(token < FEWER for token in drafted) or not number


def test_other_ids_under_rejection(llama_path: Path, tmp_path: Path) -> None:
    draft = save_resized(llama_path, tmp_path / "draft", FEWER)
    runner = runner_of(llama_path, draft, rule=AcceptanceRule.REJECTION)
    for prompt, sampling in zip((KNOWN, UNKNOWN), SAMPLINGS, strict=True):
        assert sum(write(runner, prompt, sampling)[1].values()) > 0


@pytest.mark.parametrize("way", ["pads", "discard"])
def test_fewer_positions(tmp_path: Path, way: str) -> None:
    target = save_gpt2(tmp_path / "target", 256)
    draft = save_gpt2(tmp_path / "draft", 32)
    runner, plain = runner_of(target, draft, **WAYS[way]), build_runner(target)
    # The last one is longer than the draft model can see from the start.
    for prompt in (KNOWN, KNOWN * 4):
        text, accepted = write(runner, prompt, SAMPLINGS[0])
        assert text == generate(plain, prompt, NUM_TOKENS)
        # The token after the last position may still be drafted.
        assert all(length + number <= 33 for length, number in accepted.items() if number)
        assert (sum(accepted.values()) > 0) == (prompt == KNOWN)
