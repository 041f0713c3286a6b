"""Steps of any width give the same answer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.answer import Answer, Piece
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.output import (
    Finished,
    FinishReason,
    Speculation,
    StepOutput,
    Usage,
)

END = 1000
PREDICTION = DraftSource.PREDICTION
BY_SOURCE = {PREDICTION: 3, DraftSource.TARGET: 1, DraftSource.EAGLE: 0}


def decode(token_ids: list[int]) -> str:
    """Every token is a letter."""
    return "".join(chr(token) for token in token_ids)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def answer(stop: list[str] | None = None, min_tokens: int = 0) -> Answer:
    return Answer(5, Detokenizer(decode, {END}), stop or [], min_tokens)  # type: ignore[arg-type]


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
def test_text_tokens_and_end_do_not_depend_on_the_width(
    text: str, width: int, stop: list[str]
) -> None:
    narrow, wide = answer(stop), answer(stop)
    expected = play(narrow, text, 1)
    actual = play(wide, text, width)
    assert "".join(p.text for p in actual) == "".join(p.text for p in expected)
    assert [t for p in actual for t in p.token_ids] == [t for p in expected for t in p.token_ids]
    assert actual[-1].finish_reason == expected[-1].finish_reason
    assert wide.usage().completion_tokens == narrow.usage().completion_tokens


def test_the_stop_token_is_counted_and_not_shown() -> None:
    state = Answer(5, Detokenizer(decode, set()), [], 0)  # type: ignore[arg-type]
    (piece,) = play(state, "ab", 3)
    assert piece.text == "ab"
    assert piece.token_ids == [*letters("ab"), END]
    assert piece.finish_reason is FinishReason.STOP


def test_a_stop_string_ends_the_account_at_its_last_token() -> None:
    state = answer(["cd"])
    pieces = play(state, "abcdefgh", 6)
    assert [piece.text for piece in pieces] == ["ab"]
    assert pieces[0].token_ids == letters("abcd")
    assert pieces[0].num_accepted_tokens == 4
    assert pieces[0].finish_reason is FinishReason.STOP_STRING
    assert state.usage() == Usage(5, 4, 4, None, 1, {PREDICTION: 4})
    # What was refused only the scheduler knows; the rest ends at the stop string.
    assert state.speculation() == Speculation(1, 4, 4, None, [0, 0, 0, 0, 1])
    state.settle(Finished(FinishReason.ABORTED, "", 9, 3, 2, num_drafted_tokens=9))
    assert state.usage() == Usage(5, 4, 4, 3, 1, {PREDICTION: 4})
    assert state.speculation() == Speculation(1, 4, 4, 9, [0, 0, 0, 0, 1])


def test_only_what_was_predicted_counts_as_such_and_every_source_is_counted() -> None:
    state = answer(["fg"])
    first = state.push(StepOutput(letters("abc"), 2, DraftSource.MEDUSA))
    assert (first.num_accepted_tokens, first.predicted_text_length) == (0, 0)
    second = state.push(StepOutput(letters("de"), 1, PREDICTION))
    assert (second.num_accepted_tokens, second.predicted_text_length) == (1, 1)
    state.push(StepOutput(letters("fghi"), 4, DraftSource.EAGLE))
    usage = state.usage()
    assert usage.accepted_prediction_tokens == 1
    assert usage.completion_tokens == sum(usage.num_tokens_by_source.values()) == 7
    assert usage.num_tokens_by_source == {
        DraftSource.TARGET: 2,
        PREDICTION: 1,
        DraftSource.MEDUSA: 2,
        DraftSource.EAGLE: 2,
    }


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    state = answer(["b"], min_tokens=3)
    pieces = play(state, "abcdbe", 4)
    assert "".join(piece.text for piece in pieces) == "abcd"
    assert pieces[-1].finish_reason is FinishReason.STOP_STRING


def test_text_held_for_a_stop_string_comes_at_the_end() -> None:
    state = answer(["abcd"])
    assert "".join(piece.text for piece in play(state, "xxabc", 2)) == "xxabc"


def test_half_a_character_at_the_end_is_shown_as_such(backend: Backend) -> None:
    state = Answer(1, Detokenizer(backend.decode, set()), [], 0)
    (begin,) = backend.encode("æ").ids[:1]
    piece = state.push(StepOutput([begin], finished=Finished(FinishReason.LENGTH)))
    assert piece.text == "\ufffd"


def test_what_stands_in_no_prediction_counts_as_own_text() -> None:
    state = answer(stop=["X"])
    state.push(StepOutput(letters("abcd"), 3, PREDICTION, prediction_positions=[4, -1, 9]))
    # Behind the stop string nothing counts.
    state.push(StepOutput(letters("eXgh"), 3, PREDICTION, prediction_positions=[-1, 5, -1]))
    usage = state.usage()
    assert usage.accepted_prediction_tokens == 3
    assert usage.num_tokens_by_source == {
        DraftSource.TARGET: 1,
        PREDICTION: 3,
        DraftSource.NGRAM: 2,
    }


@pytest.mark.parametrize("positions", [None, [-1, -1, -1]])
def test_without_a_prediction_every_draft_of_a_proposer_is_own_text(
    positions: list[int] | None,
) -> None:
    state = Answer(5, Detokenizer(decode, {END}), [], 0, has_prediction=False)  # type: ignore[arg-type]
    step = StepOutput(letters("abcd"), 3, PREDICTION, prediction_positions=positions)
    piece = state.push(step)
    assert (piece.num_accepted_tokens, piece.draft_source) == (3, DraftSource.NGRAM)
    usage = state.usage()
    assert usage.accepted_prediction_tokens == 0
    assert usage.num_tokens_by_source == {DraftSource.TARGET: 1, DraftSource.NGRAM: 3}


def test_of_an_answer_that_another_scheduler_began_the_account_is_unknown() -> None:
    state = answer()
    part = Finished(FinishReason.STOP, "", 9, 3, 2, num_drafted_tokens=4, num_cached_tokens=7)
    state.settle(replace(part, is_whole=False))
    assert state.speculation().num_drafted_tokens is None
    assert state.usage().rejected_prediction_tokens is None
    assert state.usage().cached_prompt_tokens == 0
