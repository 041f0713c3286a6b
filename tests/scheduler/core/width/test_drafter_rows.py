"""Rows that draft with the worker's drafter: what is planned, checked, counted and learnt."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
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


LOOKUP = Drafter(DraftSource.NGRAM, 20, 20)


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


@pytest.mark.parametrize("drafter", [CHAIN, TREE, LOOKUP])
def test_each_draft_counts_for_what_made_it(drafter: Drafter) -> None:
    situation = forming(drafter)
    situation.add(0, [1, 2], 100, sampling=FORM, predicted_token_ids=[9] * 40, is_followed=False)
    levels, both = situation.scheduler._state.widths.drafter, 0
    assert levels is not None
    for _ in range(9):
        before = levels.acceptance._counts[1, 0]
        situation.send()
        result = run_plan(situation)
        of_form, all_accepted = result.num_form_accepted_tokens, result.num_accepted_tokens
        situation.got.take(outputs := situation.scheduler.settle(result))
        if len(of_form):
            assert outputs.num_form_tokens.tolist() == of_form.tolist()
            both += int(0 < of_form[0] < all_accepted[0])
            assert levels.acceptance._counts[1, 0] <= before + all_accepted[0] - of_form[0]
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
