"""The account of several answers to one prompt, and what speculation was worth."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.answer import Answer
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.output import (
    MAX_COUNTED,
    Finished,
    FinishReason,
    Speculation,
    StepOutput,
    Usage,
    add_speculations,
    merge_usages,
)
from optimist_gateway.fronts.openai.answer_parts import usage_answer
from tests.gateway.fake_scheduler import Script, Step
from tests.gateway.harness import COMPLETIONS, Gateway

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


def test_answers_to_different_prompts_have_no_common_account() -> None:
    with pytest.raises(ValueError, match="one prompt"):
        merge_usages([Usage(1, 0, 0, 0, 0), Usage(2, 0, 0, 0, 0)])
    with pytest.raises(ValueError, match="one prompt"):
        merge_usages([])


LENGTHS = st.lists(st.integers(0, MAX_COUNTED + 9), max_size=8)


def decode(token_ids: list[int]) -> str:
    return "".join(chr(token) for token in token_ids)


def played(lengths: list[int]) -> Speculation:
    """Returns what passes with as many accepted drafts were worth."""
    answer = Answer(3, Detokenizer(decode, ()), [], 0)  # type: ignore[arg-type]
    for accepted in lengths:
        answer.push(StepOutput([97] * (accepted + 1), accepted, DraftSource.NGRAM))
    answer.push(
        StepOutput([], finished=Finished(FinishReason.LENGTH, num_drafted_tokens=2 * sum(lengths)))
    )
    return answer.speculation()


@given(LENGTHS)
def test_every_pass_is_counted_once(lengths: list[int]) -> None:
    speculation = played(lengths)
    histogram = speculation.accepted_length_histogram
    assert speculation.num_passes == len(lengths) == sum(histogram)
    assert speculation.num_accepted_tokens == sum(lengths)
    assert speculation.num_drafted_tokens == 2 * sum(lengths)
    assert speculation.acceptance_rate == (0.5 if sum(lengths) else None)
    mean = (sum(lengths) + len(lengths)) / len(lengths) if lengths else None
    assert speculation.mean_accepted_length == mean
    assert len(histogram) <= MAX_COUNTED + 1
    for length, count in enumerate(histogram):
        assert count == sum(min(one, MAX_COUNTED) == length for one in lengths)


@given(LENGTHS, LENGTHS)
def test_several_answers_are_added(left: list[int], right: list[int]) -> None:
    assert add_speculations([played(left), played(right)]) == played([*left, *right])


def test_without_an_account_the_rate_is_unknown() -> None:
    unknown = Speculation(2, 5, 3, None, [0, 1, 1])
    both = add_speculations([unknown, Speculation(1, 1, 0, 4, [1])])
    assert both.num_drafted_tokens is both.acceptance_rate is None
    assert both.accepted_length_histogram == [1, 1, 1]


async def test_the_final_usage_has_it(gateway: Gateway) -> None:
    steps = [Step([20, 21, 22], 2), Step([23]), Step([24, 1], 1)]
    gateway.scheduler.script = Script(steps, num_drafted_tokens=6)
    expected = {
        "num_passes": 6,
        "num_drafted_tokens": 12,
        "num_accepted_tokens": 6,
        "acceptance_rate": 0.5,
        "mean_accepted_length": 2.0,
        "accepted_length_histogram": [2, 2, 2],
    }
    fields: dict[str, Any] = {"n": 2, "include_speculation": True}
    assert (await gateway.answer(COMPLETIONS, **fields))["usage"]["speculation"] == expected
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await gateway.chunks(COMPLETIONS, stream_options=options, **fields)
    assert last["usage"]["speculation"] == expected
    assert not any("speculation" in chunk["usage"] for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert "speculation" not in (await gateway.answer(COMPLETIONS, n=2))["usage"]
