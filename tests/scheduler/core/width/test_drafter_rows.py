"""Rows that draft with the worker's drafter: what is planned, checked, counted and learnt."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.plan import NO_SLOTS
from optimist_scheduler.core.results.check import ResultError
from optimist_scheduler.core.width.acceptance import Drafter
from tests.scheduler.situation import Situation, ints, run_plan

CHAIN = Drafter(DraftSource.DRAFT_MODEL, 3, 3)
TREE = Drafter(DraftSource.MEDUSA, 6, 2)


def drafting(drafter: Drafter = CHAIN, **values: Any) -> Situation:
    values = {"num_speculative_tokens": 8, "max_num_batched_tokens": 64, **values}
    return Situation(drafter=drafter, num_blocks=200, **values)


def planned(situation: Situation) -> Any:
    return situation.send().num_draft_tokens.tolist()


def test_windows_and_the_drafter_learn_nothing_of_each_other() -> None:
    situation = drafting(CHAIN)
    truth = situation.foresee([1, 2], 40)
    situation.add(0, [1, 2], 40, predicted_token_ids=truth)
    situation.step()
    widths, slots = situation.scheduler._state.widths, ints(0)
    for _ in range(4):
        # A window comes while the drafter drafts.
        situation.send()
        situation.propose(0, wrong_at=0)
        before = widths.windows.rate(slots)[0]
        assert situation.answer().draft_sources.tolist() == [DraftSource.DRAFT_MODEL]
        assert widths.windows.rate(slots)[0] == before
    situation.propose(0)
    before = widths.levels.rate(slots)[0]
    situation.step()
    assert widths.levels.rate(slots)[0] == before
    situation.finish()


def settle_spoiled(situation: Situation, values: dict[str, list[int]], fault: str) -> None:
    """Settles a result some of whose columns cannot be."""
    columns: dict[str, Any] = {name: np.array(each, np.int32) for name, each in values.items()}
    situation.settle_wrong(replace(run_plan(situation), **columns), fault)
    situation.finish()


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"draft_sources": [0]}, "draft_sources"),
        ({"draft_sources": [3]}, "draft_sources"),
        ({"draft_sources": [-1]}, "draft_sources"),
        ({"num_drafted_tokens": [7]}, "num_drafted_tokens"),
        ({"num_accepted_tokens": [3], "num_drafted_tokens": [6]}, "num_accepted_tokens"),
    ],
)
def test_a_row_that_no_drafter_can_have_made_ends_its_request(
    values: dict[str, list[int]], column: str
) -> None:
    situation = drafting(TREE)
    situation.add_predicted(0, [1, 2], 30)
    situation.step()
    situation.propose(0, wrong_at=0)
    situation.step()
    situation.send()
    settle_spoiled(situation, values, column)


def test_the_time_of_the_drafter_is_learnt_apart_from_that_of_the_pass() -> None:
    situation = drafting(CHAIN, draft_width="goodput")
    situation.add(0, [1, 2], 40)
    for _ in range(8):
        situation.send()
        result = run_plan(situation)
        draft_ns = 2_000_000 * bool(result.draft_sources[0])
        result = replace(result, step_ns=5_000_000, draft_ns=draft_ns)
        situation.got.take(situation.scheduler.settle(result))
    state = situation.scheduler._state
    assert state.drafter_costs.cost(3) == pytest.approx(2_000_000, rel=0.01)
    assert state.costs_for(NO_SLOTS).cost(4) < 3_500_000


LOOKUP = Drafter(DraftSource.NGRAM, 20, 20)


@pytest.mark.parametrize(
    ("drafter", "number"), [(LOOKUP, 16), (replace(LOOKUP, is_padded=True), 2)], ids=["", "padded"]
)
def test_a_lookup_that_leaves_out_what_is_unlikely_may_make_more_than_pays(
    drafter: Drafter, number: int
) -> None:
    situation = drafting(drafter, num_speculative_tokens=20, max_model_len=200)
    for handle in range(2):
        situation.add(handle, [1, handle], 100, predicted_token_ids=[9] * 40, is_followed=True)
    situation.step()
    situation.table.drafter_width[:] = 2
    assert planned(situation) == [number] * 2
    situation.table.drafter_width[:] = 0
    situation.answer()
    assert planned(situation) == [0, 0]


def test_plans_say_from_which_chance_on_a_draft_of_a_lookup_pays() -> None:
    costs = [(1, 11), (64, 74)]
    values: dict[str, Any] = {"max_model_len": 200, "draft_width": "goodput"}
    situation = Situation(costs, drafter=LOOKUP, num_speculative_tokens=20, **values)
    situation.add(0, [1, 2], 100, predicted_token_ids=[9] * 40)
    situation.step()
    # A pass of the fake worker takes 10 us and one for each token.
    assert 0 < situation.send().least_chance < 1
    situation.answer()
    situation.finish()
    chain = drafting(CHAIN, draft_width="goodput")
    chain.add(0, [1, 2], 30)
    assert chain.send().least_chance == 0
    chain.finish()


@pytest.mark.parametrize("position", [-2, 39, 2**31 - 1])
def test_a_lookup_elsewhere_than_in_the_prediction_ends_its_request(position: int) -> None:
    situation = drafting(LOOKUP, num_speculative_tokens=20, max_model_len=200)
    situation.add(0, [1, 2], 100, predicted_token_ids=[9] * 40)
    situation.step()
    situation.send()
    settle_spoiled(situation, {"draft_positions": [position]}, "draft_positions: ")


@pytest.mark.parametrize(("column", "values"), [("draft_positions", [0, 0]), ("draft_sources", [])])
def test_columns_of_another_length_are_refused(column: str, values: list[int]) -> None:
    situation = drafting(LOOKUP)
    situation.add(0, [1, 2], 30)
    situation.send()
    result, changes = run_plan(situation), dict[str, Any]({column: ints(*values)})
    with pytest.raises(ResultError, match=column):
        situation.scheduler.settle(replace(result, **changes))
    situation.got.take(situation.scheduler.settle(result))
    situation.finish()
