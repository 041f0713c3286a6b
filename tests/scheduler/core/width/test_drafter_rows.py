"""Rows that draft with the worker's drafter: what is planned, checked, counted and learnt."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.config import FORM_BESIDE_WINDOWS
from optimist_scheduler.core.requests.plan import NO_SLOTS
from optimist_scheduler.core.results.check import ResultError
from optimist_scheduler.core.width.acceptance import Drafter
from tests.scheduler.situation import Situation, ints, make_window, run_plan, set_window

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


@pytest.mark.parametrize(("pads_passes", "number"), [(False, 16), (True, 2)], ids=["", "padded"])
def test_a_lookup_that_leaves_out_what_is_unlikely_may_make_more_than_pays(
    pads_passes: bool, number: int
) -> None:
    values: dict[str, Any] = {"max_model_len": 200, "pads_passes": pads_passes}
    situation = drafting(LOOKUP, num_speculative_tokens=20, **values)
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


@pytest.mark.parametrize(
    ("column", "values"),
    [("draft_positions", [0, 0]), ("draft_sources", []), ("num_form_drafted_tokens", [0])],
)
def test_columns_of_another_length_are_refused(column: str, values: list[int]) -> None:
    situation = drafting(LOOKUP)
    situation.add(0, [1, 2], 30)
    situation.send()
    result, changes = run_plan(situation), dict[str, Any]({column: ints(*values)})
    with pytest.raises(ResultError, match=column[:8]):
        situation.scheduler.settle(replace(result, **changes))
    situation.got.take(situation.scheduler.settle(result))
    situation.finish()


FORM = SamplingParams(grammar="start: /.*/")


def forming(drafter: Drafter | None = None, **values: Any) -> Situation:
    """Returns a situation in which rows may draft as much as there is from their form."""
    sizes: dict[str, Any] = {"num_blocks": 200, "max_model_len": 200, "max_num_batched_tokens": 80}
    return Situation(drafter=drafter, num_speculative_tokens=64, **{**sizes, **values})


@pytest.mark.parametrize(
    ("values", "request_values", "number"),
    [
        ({}, {}, 32),
        ({"draft_width": "goodput"}, {}, 32),
        ({"drafter": CHAIN}, {}, 32),
        ({"drafter": LOOKUP}, {"is_followed": True}, 32),
        ({"pads_passes": True}, {}, 8),
        ({"max_num_batched_tokens": 16}, {}, 14),
        ({"num_blocks": 8}, {}, 25),
        ({}, {"max_draft_tokens": 3}, 3),
        ({}, {"max_draft_tokens": 0}, 0),
        ({}, {"max_tokens": 8}, 6),
    ],
)
def test_a_row_with_a_grammar_may_draft_from_its_form_alone_after_its_prompt(
    values: dict[str, Any], request_values: dict[str, Any], number: int
) -> None:
    situation = forming(**values)
    request_values = {"max_tokens": 100, **request_values}
    situation.add(0, [1, 2], sampling=FORM, **request_values)
    situation.add(1, [1, 3], 100)
    assert situation.send().num_draft_tokens[0] <= 3 * (situation.config.drafter is CHAIN)
    situation.answer()
    assert planned(situation)[0] == number


def test_a_row_with_a_grammar_drafts_from_its_form_beside_its_window() -> None:
    situation = forming()
    text = situation.add(0, [1, 2], 100, sampling=FORM)
    situation.step()
    assert set_window(situation.scheduler, "r0", make_window(1, -1, text[1:4]))
    assert planned(situation) == [3 + FORM_BESIDE_WINDOWS]


@pytest.mark.parametrize(("us", "number"), [(10, 8), (1, 0)])
def test_where_passes_are_padded_forms_may_not_take_longer_than_tokens(
    us: int, number: int
) -> None:
    costs = [(1, us), (64, us + 63)]
    situation = Situation(costs, pads_passes=True, draft_width="goodput", num_speculative_tokens=20)
    situation.add(0, [1, 2], 40, sampling=FORM)
    situation.step()
    assert planned(situation) == [number]


@pytest.mark.parametrize(
    ("values", "is_chosen"),
    [({}, True), ({"pads_passes": True}, False), ({"draft_width": "fixed"}, False)],
)
def test_plans_say_from_which_chance_on_a_draft_of_a_form_pays(
    values: dict[str, Any], is_chosen: bool
) -> None:
    # A pass of the fake worker takes 10 us and one for each token.
    situation = Situation([(1, 11), (64, 74)], **{"draft_width": "goodput", **values})
    situation.add(0, [1, 2], 40, sampling=FORM)
    assert situation.step().least_chance == 0
    least = situation.send().least_chance
    assert 0 < least < 1 if is_chosen else least == 0


@pytest.mark.parametrize("drafter", [CHAIN, TREE, LOOKUP])
def test_each_draft_counts_for_what_made_it(drafter: Drafter) -> None:
    situation = forming(drafter)
    situation.add(0, [1, 2], 100, sampling=FORM, predicted_token_ids=[9] * 40, is_followed=False)
    levels, both = situation.scheduler._state.widths.levels, 0
    for _ in range(9):
        before = levels._agreed[0]
        situation.send()
        result = run_plan(situation)
        of_form, all_accepted = result.num_form_accepted_tokens, result.num_accepted_tokens
        situation.got.take(outputs := situation.scheduler.settle(result))
        if len(of_form):
            assert outputs.num_form_tokens.tolist() == of_form.tolist()
            both += int(0 < of_form[0] < all_accepted[0])
            assert levels._agreed[0] <= before + all_accepted[0] - of_form[0]
    assert both
    situation.finish()
    by_source = situation.finished(0).num_tokens_by_source
    assert min(by_source[DraftSource.FORM], sum(by_source[2:7]) + by_source[1]) > 0
    assert sum(by_source) == 100


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"num_form_accepted_tokens": [-1]}, "num_form_"),
        ({"num_form_accepted_tokens": [64]}, "num_form_"),
        ({"num_form_drafted_tokens": [-(2**31)]}, "num_form_|draft_sources"),
        ({"num_form_drafted_tokens": [64]}, "num_form_|draft_sources"),
        ({"num_form_drafted_tokens": [0]}, "draft_sources"),
        ({"num_form_drafted_tokens": [], "num_form_accepted_tokens": []}, "draft_sources"),
        ({"draft_sources": [DraftSource.TARGET]}, "draft_sources"),
        ({"draft_sources": [DraftSource.PREDICTION]}, "draft_sources"),
    ],
)
def test_a_row_whose_form_cannot_have_given_what_it_says_ends_its_request(
    values: dict[str, list[int]], column: str
) -> None:
    situation = forming()
    situation.add(0, [1, 2], 100, sampling=FORM)
    situation.step()
    situation.send()
    settle_spoiled(situation, values, column)


def test_only_rows_with_a_grammar_have_drafts_from_a_form() -> None:
    situation = forming(CHAIN)
    situation.add(0, [1, 2], 100)
    situation.step()
    situation.send()
    columns: dict[str, Any] = {"num_form_drafted_tokens": ints(3)}
    columns |= {"draft_sources": ints(7), "num_form_accepted_tokens": ints(0)}
    situation.settle_wrong(replace(run_plan(situation), **columns), "num_form_")
    situation.finish()
