"""Texts are the same whoever drafts, and drafts are worth what they should be."""

from pathlib import Path
from typing import Any

import pytest

from optimist_common.errors import SetupError
from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import PlannedRow, WindowUpdate
from optimist_worker.drafters.build import read_shape
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.runner.runner import Runner
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import VOCAB_SIZE
from tests.worker.drafters.drafting import SHAPES, shared_runner
from tests.worker.step import admit, blocks_of, generate, plain_text, plan_rows, run

PROMPT = [5, 9, 300, 17, 44, 44, 8, 130, 77, 201, 3, 90, 6, 15, 99, 250, 31, 12, 60, 4, 7]
SAMPLED = SamplingParams(temperature=0.8, seed=11, top_p=0.95, repetition_penalty=1.1)


# Drafts of n-grams and of discarded keys have one shape as well as another.
WAYS = [("ngram", "chain"), ("itself", "dynamic"), ("discard", "fixed"), ("medusa", "dynamic")]
WAYS += [(way, shape) for way in ("draft_model", "eagle") for shape in SHAPES]


@pytest.fixture(params=WAYS, ids="-".join)
def drafting(request: pytest.FixtureRequest, llama_path: Path) -> Runner:
    way, shape = request.param
    return shared_runner(llama_path, way, shape, AcceptanceRule.COUPLED)


@pytest.mark.parametrize(("sampling", "width"), [(SamplingParams(), 12), (SAMPLED, 2)])
def test_texts_are_those_without_drafts(
    drafting: Runner, llama: Runner, sampling: SamplingParams, width: int
) -> None:
    expected = plain_text(llama, PROMPT, 48, sampling)[:24]
    assert generate(drafting, PROMPT, 24, sampling=sampling, width=width, chunk=8) == expected


def test_unlikely_drafts_are_not_made_where_they_do_not_pay(
    llama: Runner, llama_path: Path
) -> None:
    truth = plain_text(llama, PROMPT, 30)
    other = [(token + 1) % VOCAB_SIZE for token in truth[:10]]
    runner = shared_runner(llama_path, "ngram", "chain", AcceptanceRule.COUPLED)
    for least_chance, number in ((0.0, 4), (0.9, 0)):
        runner.release_all()
        request = admit(0, PROMPT, predicted_token_ids=[*other, *truth[10:]])
        first = plan_rows(0, [PlannedRow(0, 100, 0, blocks_of(0))], admissions=[request])
        run(runner, first)
        plan = plan_rows(1, [PlannedRow(0, 1, 4, [])], least_chance=least_chance)
        (row,) = run(runner, plan)
        # What was said first is not in the prediction near by.
        assert row.num_drafted_tokens == number


def window_tree(truth: list[int], base: int) -> WindowUpdate:
    """A window with a wrong token and with two branches, the second of which is right there."""
    ahead = truth[base : base + 7]
    wrong = [(token + 1) % VOCAB_SIZE for token in ahead]
    tokens = [*ahead[:2], wrong[2], *ahead[3:5], wrong[0], *ahead[2:]]
    parents = [-1, 0, 1, 2, 3, -1, 1, *range(6, 5 + len(ahead) - 2)]
    return WindowUpdate(0, base, tokens, parents[: len(tokens)])


def check_with_windows(runner: Runner, expected: list[int], sampling: SamplingParams) -> None:
    """Compares a text where windows come now and then; in between there is room for a drafter."""

    def predict(output: list[int]) -> WindowUpdate | None:
        return window_tree(expected, len(output)) if len(output) % 3 == 0 else None

    text = generate(runner, PROMPT, 30, sampling=sampling, predict=predict, width=9)
    assert text == expected[:30]


def test_texts_are_the_same_with_window_trees_beside_a_drafter(
    drafting: Runner, llama: Runner
) -> None:
    check_with_windows(drafting, plain_text(llama, PROMPT, 48, SAMPLED), SAMPLED)


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_greedy_texts_are_the_same_under_rejection(
    llama: Runner, llama_path: Path, shape: str
) -> None:
    runner = shared_runner(llama_path, "draft_model", shape, AcceptanceRule.REJECTION)
    check_with_windows(runner, plain_text(llama, PROMPT, 48), SamplingParams())


@pytest.mark.parametrize("most", [0, 1])
def test_a_plan_bounds_what_the_drafter_makes(llama_path: Path, most: int) -> None:
    runner = shared_runner(llama_path, "itself", "chain", AcceptanceRule.COUPLED)
    runner.release_all()
    first = plan_rows(0, [PlannedRow(0, 100, 0, blocks_of(0))], admissions=[admit(0, PROMPT)])
    run(runner, first)
    # The window is taken back with the plan: the drafter is asked in the same pass.
    for number, window in enumerate(([1, 2, 3], []), 1):
        windows = [WindowUpdate(0, 0, window)]
        plan = plan_rows(
            number, [PlannedRow(0, 1, 3, [])], windows=windows, max_drafter_tokens=most
        )
        (row,) = run(runner, plan)
        assert row.error is None
    assert row.num_drafted_tokens == most


def shape_of(drafter: str, depth: int, width: int) -> DraftShape:
    changes: dict[str, Any] = {"drafter": drafter, "drafter_depth": depth, "drafter_width": width}
    settings = WorkerSettings(model="m", drafter_tree="dynamic", drafter_tokens=60, **changes)
    return read_shape(settings, VOCAB_SIZE)


def test_a_tree_goes_on_from_no_more_drafts_than_the_mask_has_bits() -> None:
    with pytest.raises(SetupError, match=r"^--drafter-depth, --drafter-width: .* 70 drafts go on"):
        shape_of("eagle", 8, 10)
    assert shape_of("eagle", 5, 16) == DraftShape(60, 5, 16, is_dynamic=True)
    # Medusa goes on from none.
    assert shape_of("medusa", 8, 10) == DraftShape(60, 8, 10, is_dynamic=True)
