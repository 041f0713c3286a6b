"""The account of several answers to one prompt."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.draft_source import DraftSource
from optimist_gateway.core.answer.usage import Usage, merge_usages
from optimist_gateway.fronts.openai.answer_parts import usage_answer

COUNTS = st.integers(0, 1000)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Accounts of answers to one prompt of eleven tokens."""
    by_source = draw(st.dictionaries(st.sampled_from(list(DraftSource)), st.integers(1, 1000)))
    return Usage(
        prompt_tokens=11,
        completion_tokens=sum(by_source.values()),
        accepted_prediction_tokens=by_source.get(DraftSource.PREDICTION, 0),
        rejected_prediction_tokens=draw(st.none() | COUNTS),
        num_passes=draw(COUNTS),
        num_tokens_by_source=by_source,
        cached_prompt_tokens=draw(st.integers(0, 11)),
    )


SEVERAL = st.lists(usages(), min_size=1, max_size=6)


@given(SEVERAL)
def test_the_prompt_is_counted_once_and_the_answers_are_added(several: list[Usage]) -> None:
    merged = merge_usages(several)
    api = usage_answer(merged, with_num_passes=True)
    details = api["completion_tokens_details"]
    assert api["prompt_tokens"] == 11
    cached = min(one.cached_prompt_tokens for one in several)
    assert api["prompt_tokens_details"] == {"cached_tokens": cached, "audio_tokens": 0}
    assert api["completion_tokens"] == sum(one.completion_tokens for one in several)
    assert api["total_tokens"] == 11 + api["completion_tokens"]
    assert api["num_passes"] == sum(one.num_passes for one in several)
    assert sum(details["tokens_by_source"].values()) == api["completion_tokens"]
    assert details["tokens_by_source"].get("prediction", 0) == details["accepted_prediction_tokens"]
    for source in DraftSource:
        assert merged.num_tokens_by_source.get(source, 0) == sum(
            one.num_tokens_by_source.get(source, 0) for one in several
        )
    assert 0 not in details["tokens_by_source"].values()
    assert list(merged.num_tokens_by_source) == sorted(merged.num_tokens_by_source)


@given(SEVERAL)
def test_what_was_rejected_is_known_if_it_is_known_of_all(several: list[Usage]) -> None:
    rejected = [one.rejected_prediction_tokens for one in several]
    known = [count for count in rejected if count is not None]
    expected = sum(known) if len(known) == len(several) else None
    assert merge_usages(several).rejected_prediction_tokens == expected


@given(SEVERAL, SEVERAL, st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_matters(
    left: list[Usage], right: list[Usage], random: Random
) -> None:
    both = [*left, *right]
    merged = merge_usages(both)
    assert merge_usages([merge_usages(left), merge_usages(right)]) == merged
    random.shuffle(both)
    assert merge_usages(both) == merged


@given(usages())
def test_one_answer_has_its_own_account(usage: Usage) -> None:
    assert merge_usages([usage]) == usage


def test_answers_to_different_prompts_have_no_common_account() -> None:
    with pytest.raises(ValueError, match="one prompt"):
        merge_usages([Usage(1, 0, 0, 0, 0), Usage(2, 0, 0, 0, 0)])
    with pytest.raises(ValueError, match="one prompt"):
        merge_usages([])
