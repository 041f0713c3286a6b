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
from optimist_worker.core.plan import PlannedRow
from optimist_worker.drafters.build import build_drafter
from optimist_worker.model.fused import fuse
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import SIZES, admit, blocks_of, local_runner, plan_rows, run

FEWER, MORE = VOCAB_SIZE - 60, VOCAB_SIZE + 64
KNOWN = [5, 9, 200, 17, 44, 44, 8, 130, 77, 201]
"""A prompt of tokens that all know."""
UNKNOWN = [5, FEWER + 3, 200, VOCAB_SIZE - 1, 44, 8, FEWER]
SAMPLINGS = [SamplingParams(), SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.2)]
NUM_TOKENS = 40


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


def runner_of(target_path: Path, draft_path: Path | None, **options: Any) -> Runner:
    torch.set_num_threads(1)
    reads_sizes = options.pop("reads_sizes", True)
    rule = options.pop("rule", AcceptanceRule.COUPLED)
    target = load_model(str(target_path), "float64", "cpu")
    fuse(target)
    state = DeviceState(target, SIZES, reads_sizes=reads_sizes)
    if draft_path is None:
        return local_runner(target, state)
    values = {"model": str(target_path), "drafter": "draft_model", "drafter_tokens": 4}
    values |= {"max_num_batched_tokens": 512, "acceptance": rule, **options}
    draft = load_model(str(draft_path), "float64", "cpu")
    fuse(draft)
    drafter, tap = build_drafter(WorkerSettings.model_validate(values), draft, target, state)
    return local_runner(target, state, drafter, tap, rule)


def generate(
    runner: Runner, prompts: list[list[int]], num_tokens: int = NUM_TOKENS
) -> tuple[list[list[int]], list[dict[int, int]]]:
    """Returns texts, and how many drafts were accepted by the length before, of each prompt."""
    runner.release_all()
    slots = range(len(prompts))
    admissions = [admit(slot, prompts[slot], SAMPLINGS[slot % 2]) for slot in slots]
    rows = [PlannedRow(slot, len(prompts[slot]), 4, blocks_of(slot)) for slot in slots]
    plan = plan_rows(0, rows, admissions=admissions)
    texts: list[list[int]] = [[] for _ in slots]
    accepted: list[dict[int, int]] = [{} for _ in slots]
    while min(map(len, texts)) < num_tokens:
        for row in run(runner, plan):
            assert row.error is None, row.error
            length = len(prompts[row.slot]) + len(texts[row.slot])
            accepted[row.slot][length] = row.num_accepted_tokens
            texts[row.slot] += row.token_ids
        plan = plan_rows(0, [PlannedRow(slot, 1, 4, []) for slot in slots])
    drafter = runner.engine.drafter
    assert drafter is None or drafter.num_failures == 0
    return [text[:num_tokens] for text in texts], accepted


WAYS: dict[str, dict[str, Any]] = {
    "reads sizes": {},
    "pads": {"reads_sizes": False},
    "discard": {"drafter_kv": "discard"},
    "tree": {"drafter_tree": "dynamic", "drafter_depth": 2, "drafter_width": 2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vocab_size", [FEWER, MORE])
def test_other_ids(llama_path: Path, tmp_path: Path, vocab_size: int, way: str) -> None:
    draft = save_resized(llama_path, tmp_path / "draft", vocab_size)
    prompts = [KNOWN, KNOWN[1:], UNKNOWN, UNKNOWN[1:]]
    plain, _ = generate(runner_of(llama_path, None), prompts)
    assert any(token >= FEWER for text in plain for token in text)
    texts, accepted = generate(runner_of(llama_path, draft, **WAYS[way]), prompts)
    assert texts == plain
    for prompt, text, numbers in zip(prompts, texts, accepted, strict=True):
        assert sum(numbers.values()) > 0
        sequence = prompt + text
        for length, number in numbers.items():
            drafted = sequence[length - 1 : length + number]
            assert vocab_size == MORE or all(token < FEWER for token in drafted) or not number


def test_other_ids_under_rejection(llama_path: Path, tmp_path: Path) -> None:
    draft = save_resized(llama_path, tmp_path / "draft", FEWER)
    _, accepted = generate(
        runner_of(llama_path, draft, rule=AcceptanceRule.REJECTION), [KNOWN, UNKNOWN]
    )
    assert all(sum(numbers.values()) > 0 for numbers in accepted)


@pytest.mark.parametrize("way", WAYS)
def test_fewer_positions(tmp_path: Path, way: str) -> None:
    target = save_gpt2(tmp_path / "target", 256)
    draft = save_gpt2(tmp_path / "draft", 32)
    # The last one is longer than the draft model can see from the start.
    prompts = [KNOWN, KNOWN[1:], KNOWN * 4]
    plain, _ = generate(runner_of(target, None), prompts, 60)
    texts, accepted = generate(runner_of(target, draft, **WAYS[way]), prompts, 60)
    assert texts == plain
    for numbers in accepted[:2]:
        # The token after the last position may still be drafted.
        assert sum(numbers.values()) > 0
        assert all(length + number <= 33 for length, number in numbers.items() if number)
    assert sum(accepted[2].values()) == 0
