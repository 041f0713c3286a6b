"""Texts are the same whoever drafts, and drafts are worth what they should be."""

from pathlib import Path

import pytest

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance_rule import AcceptanceRule
from optimist_worker.core.plan import PlannedRow
from optimist_worker.runner import Runner
from tests.worker.drafting import SHAPES, WAYS, shared_runner
from tests.worker.step import admit, blocks_of, generate, plan_rows, run

PROMPT = [5, 9, 300, 17, 44, 44, 8, 130, 77, 201, 3, 90, 6, 15, 99, 250, 31, 12, 60, 4, 7]
SAMPLED = SamplingParams(temperature=0.8, seed=11, top_p=0.95, repetition_penalty=1.1)


@pytest.fixture(params=[(way, shape) for way in WAYS for shape in SHAPES], ids="-".join)
def drafting(request: pytest.FixtureRequest, llama_path: Path) -> Runner:
    way, shape = request.param
    return shared_runner(llama_path, way, shape, AcceptanceRule.COUPLED)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("width", [2, 12])
def test_texts_are_those_without_drafts(
    drafting: Runner, llama: Runner, sampling: SamplingParams, width: int
) -> None:
    expected = generate(llama, PROMPT, 48, sampling=sampling)
    assert generate(drafting, PROMPT, 48, sampling=sampling, width=width, chunk=8) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_a_drafter_that_is_the_target_is_always_right(llama_path: Path, shape: str) -> None:
    runner = shared_runner(llama_path, "itself", shape, AcceptanceRule.COUPLED)
    runner.release_all()
    depth, width = SHAPES[shape].depth, SHAPES[shape].num_tokens
    plan = plan_rows(0, [PlannedRow(0, 100, 0, blocks_of(0))], admissions=[admit(0, PROMPT)])
    run(runner, plan)
    for number in range(6):
        (row,) = run(runner, plan_rows(number, [PlannedRow(0, 1, width, [])]))
        assert row.error is None
        assert row.num_drafted_tokens == width
        # A dynamic tree gives up depth for breadth where the drafter is not sure.
        least = 1 if SHAPES[shape].is_dynamic else depth
        assert least <= row.num_accepted_tokens <= depth
