"""Steps of any width give the same answer; what it used, and what speculation was worth."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.answer import Answer, Piece
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.output import (
    MAX_COUNTED,
    Finished,
    FinishReason,
    StepOutput,
    Usage,
)
from tests.gateway.core.test_detokenize import first_stop
from tests.gateway.fake_scheduler import Script, Step
from tests.gateway.harness import COMPLETIONS, Fields, Gateway

END = 1000
PREDICTION = DraftSource.PREDICTION
BY_SOURCE = {PREDICTION: 3, DraftSource.TARGET: 1, DraftSource.EAGLE: 0}


def decode(token_ids: list[int]) -> str:
    """Every token is a letter."""
    return "".join(chr(token) for token in token_ids)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def answer(stop: Sequence[str] = (), min_tokens: int = 0, **options: Any) -> Answer:
    detokenizer = Detokenizer(decode, {END})  # type: ignore[arg-type]
    return Answer(5, detokenizer, stop, min_tokens, **options)


def play(
    state: Answer, text: str, width: int, reason: FinishReason = FinishReason.STOP
) -> list[Piece]:
    """Pushes a text as steps of a width, all but the last token of each predicted."""
    token_ids = letters(text) + [END] * (reason is FinishReason.STOP)
    pieces = []
    for start in range(0, len(token_ids), width):
        window = token_ids[start : start + width]
        last = start + width >= len(token_ids)
        finished = Finished(reason, "", 7, 3, 2, BY_SOURCE) if last else None
        pieces.append(state.push(StepOutput(window, len(window) - 1, PREDICTION, finished)))
        if pieces[-1].finish_reason is not None:
            break
    return pieces


@given(st.text("abc", max_size=12), st.integers(1, 14), st.lists(st.text("abc", min_size=1)))
def test_the_answer_does_not_depend_on_the_width(text: str, width: int, stop: list[str]) -> None:
    narrow, wide = answer(stop), answer(stop)
    expected, actual = play(narrow, text, 1), play(wide, text, width)
    place = first_stop(text, stop)
    shown = text if place is None else text[: place[0]]
    assert "".join(p.text for p in actual) == "".join(p.text for p in expected) == shown
    assert [t for p in actual for t in p.token_ids] == [t for p in expected for t in p.token_ids]
    assert actual[-1].finish_reason == expected[-1].finish_reason
    assert wide.usage().completion_tokens == narrow.usage().completion_tokens


def test_a_stop_string_ends_the_account_at_its_last_token() -> None:
    state = answer(["cd"])
    (piece,) = play(state, "abcdefgh", 6)
    assert (piece.text, piece.finish_reason) == ("ab", FinishReason.STOP_STRING)
    assert (piece.token_ids, piece.num_accepted_tokens) == (letters("abcd"), 4)
    histogram = [0, 0, 0, 0, 1]
    assert state.usage() == Usage(5, 4, 4, None, 1, {PREDICTION: 4}, 0, None, histogram)
    # What was refused only the scheduler knows; the rest ends at the stop string.
    state.settle(Finished(FinishReason.ABORTED, "", 9, 3, 2, num_drafted_tokens=9))
    assert state.usage() == Usage(5, 4, 4, 3, 1, {PREDICTION: 4}, 0, 9, histogram)
    assert state.usage().num_accepted_tokens == 4


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    state = answer(["b"], min_tokens=3)
    pieces = play(state, "abcdbe", 4)
    assert "".join(piece.text for piece in pieces) == "abcd"
    assert pieces[-1].finish_reason is FinishReason.STOP_STRING


LENGTHS = st.lists(st.integers(0, MAX_COUNTED + 9), max_size=8)


def played(lengths: list[int]) -> Usage:
    """Returns the account of passes with as many accepted drafts."""
    state = answer()
    for accepted in lengths:
        state.push(StepOutput([97] * (accepted + 1), accepted, DraftSource.NGRAM))
    by_source = {DraftSource.TARGET: len(lengths), DraftSource.NGRAM: sum(lengths)}
    finished = Finished(FinishReason.LENGTH, "", 0, 0, len(lengths), by_source, 2 * sum(lengths))
    state.push(StepOutput([], finished=finished))
    return state.usage()


@given(LENGTHS)
def test_every_pass_is_counted_once(lengths: list[int]) -> None:
    usage = played(lengths)
    histogram = usage.accepted_length_histogram
    assert usage.num_passes == len(lengths) == sum(histogram)
    assert usage.num_accepted_tokens == sum(lengths)
    assert usage.num_drafted_tokens == 2 * sum(lengths)
    assert usage.acceptance_rate == (0.5 if sum(lengths) else None)
    mean = (sum(lengths) + len(lengths)) / len(lengths) if lengths else None
    assert usage.mean_accepted_length == mean
    assert len(histogram) <= MAX_COUNTED + 1
    for length, count in enumerate(histogram):
        assert count == sum(min(one, MAX_COUNTED) == length for one in lengths)


async def test_the_final_usage_has_it(gateway: Gateway) -> None:
    steps = [Step([20, 21, 22], 2), Step([23]), Step([24, 1], 1)]
    gateway.scheduler.script = Script(steps, num_drafted_tokens=6)
    expected: Fields = {"num_passes": 6, "num_drafted_tokens": 12, "num_accepted_tokens": 6}
    expected |= {"acceptance_rate": 0.5, "mean_accepted_length": 2.0}
    expected["accepted_length_histogram"] = [2, 2, 2]
    fields: dict[str, Any] = {"n": 2, "include_speculation": True}
    assert (await gateway.answer(COMPLETIONS, **fields))["usage"]["speculation"] == expected
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await gateway.chunks(COMPLETIONS, stream_options=options, **fields)
    assert last["usage"]["speculation"] == expected
    assert not any("speculation" in chunk["usage"] for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert "speculation" not in (await gateway.answer(COMPLETIONS, n=2))["usage"]
