"""Outputs follow their grammars after every draft, whoever drafts."""

import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.drafts import Drafts, Ragged
from optimist_worker.core.plan import PlannedRow
from optimist_worker.runner.runner import Runner
from tests.stack import BUNDLED_MODEL
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import admit, blocks_of, generate, plan_rows, run

PATTERN = r'\{"name": "(width|breadth)", "lines": \[([0-9]{1,3}, ){2}[0-9]{1,3}\]\}'
GRAMMAR = f"start: /{PATTERN}/"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))


@pytest.fixture(scope="module", params=["chain", "dynamic"])
def runner(request: pytest.FixtureRequest) -> Runner:
    return drafting_runner(BUNDLED_MODEL, "draft_model", SHAPES[request.param])


def output_of(runner: Runner, prompt: list[int], sampling: SamplingParams, width: int) -> list[int]:
    """Generates until the end token."""
    output = generate(runner, prompt, 1, sampling=sampling)
    for number in range(80):
        if output[-1] in runner.engine.model.eos_token_ids:
            return output
        (row,) = run(runner, plan_rows(number, [PlannedRow(0, 1, width, [])]))
        assert row.error is None, row.error
        output += row.token_ids
    return output


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_outputs_follow_the_grammar_with_and_without_drafts(
    runner: Runner, tokenizer: Tokenizer, temperature: float
) -> None:
    prompt = tokenizer.encode("def f(width): return width").ids
    for seed in range(2):
        sampling = SamplingParams(temperature=temperature, seed=seed, grammar=GRAMMAR)
        plain = output_of(runner, prompt, sampling, 0)
        assert re.fullmatch(PATTERN, tokenizer.decode(plain[:-1]))
        drafted = output_of(runner, prompt, sampling, 10)
        assert drafted[: len(plain)] == plain


def test_a_wrong_grammar_fails_its_request_alone(runner: Runner) -> None:
    sampling = SamplingParams(grammar="start: nothing")
    rows = [PlannedRow(slot, 3, 0, blocks_of(slot)) for slot in (0, 1)]
    runner.release_all()
    admissions = [admit(0, [5, 6, 7], sampling), admit(1, [5, 6, 7])]
    wrong, right = run(runner, plan_rows(0, rows, admissions=admissions))
    assert wrong.error is not None
    assert wrong.error.startswith("grammar: ")
    assert right.error is None
    assert len(right.token_ids) == 1


def test_steps_without_grammars_are_not_held_up_by_one_in_another_slot(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking what is allowed waits for the device, and cannot be captured in a graph."""
    runner.release_all()
    masks, asked = runner.engine.masks, []
    allowed = masks.allowed

    def note(slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> torch.Tensor | None:
        asked.append(slots.tolist())
        return allowed(slots, drafts, nodes)

    monkeypatch.setattr(masks, "allowed", note)
    rows = [PlannedRow(slot, 3, 0, blocks_of(slot)) for slot in (0, 1)]
    admissions = [admit(0, [5, 6, 7], SamplingParams(grammar=GRAMMAR)), admit(1, [5, 6, 7])]
    run(runner, plan_rows(0, rows, admissions=admissions))
    assert asked == [[0, 1]]
    (row,) = run(runner, plan_rows(1, [PlannedRow(1, 1, 4, [])]))
    assert (row.error, len(row.token_ids) > 0) == (None, True)
    assert asked == [[0, 1]]


def test_a_model_without_a_tokenizer_refuses_grammars(llama_path: Path) -> None:
    runner = drafting_runner(llama_path, "ngram", SHAPES["chain"], rule=AcceptanceRule.COUPLED)
    sampling = SamplingParams(grammar=GRAMMAR)
    plan = plan_rows(
        0, [PlannedRow(0, 3, 0, blocks_of(0))], admissions=[admit(0, [5, 6, 7], sampling)]
    )
    (row,) = run(runner, plan)
    assert row.error == f"grammar: the model {llama_path} has no tokenizer.json"
