"""What compares answers sees every way in which one can be wrong."""

import pytest

from optimist_client import Step, TokenLogprob
from tests.chaos.load.answer import (
    Answer,
    Choice,
    Failure,
    Logprob,
    difference,
    has_duplicates,
    is_beginning,
)

LOGPROBS: list[Logprob] = [("a", -0.5), ("b", -0.5)]


def answer(**changes: object) -> Answer:
    choice = Choice(text="ab", token_ids=[1, 2], finish_reason="stop", logprobs=LOGPROBS)
    for name, value in ({"num_ends": 1} | changes).items():
        setattr(choice, name, value)
    return Answer({0: choice}, completion_tokens=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", "ac"),
        ("token_ids", [1, 3]),
        ("finish_reason", "length"),
        ("num_ends", 2),
        ("logprobs", [("a", -0.5), ("b", -0.6)]),
        ("logprobs", [("a", -0.5)]),
        ("logprobs", [("a", None), ("b", -0.5)]),
    ],
)
def test_every_difference_is_named(field: str, value: object) -> None:
    assert field in difference(answer(**{field: value}), answer())


def test_beginnings_and_tokens_that_come_twice_are_known() -> None:
    assert is_beginning(answer(text="a", token_ids=[1]), answer())
    assert not is_beginning(answer(text="ax", token_ids=[1, 9]), answer())
    assert has_duplicates(answer(token_ids=[1, 1, 2]), answer())
    assert not has_duplicates(answer(), answer())


def test_errors_are_alike_whichever_choice_failed_first_and_whatever_came_before() -> None:
    right = Answer(failure=Failure("error", "choice 0: grammar: too many items"))
    again = Answer({0: Choice("a")}, failure=Failure("error", "choice 1: grammar: too many items"))
    assert difference(again, right) == ""
    other = Answer(failure=Failure("error", "the worker was lost"))
    assert "lost" in difference(other, right)
    assert "stop" in difference(answer(), right)
    assert "too many" in difference(right, answer())
    assert is_beginning(answer(), right)


def test_steps_over_grpc_make_the_same_answer() -> None:
    tokens = [TokenLogprob(1, "a", b"a", -0.5), TokenLogprob(2, "b", b"b", -0.5)]
    got = Answer(completion_tokens=2)
    for token, reason in zip(tokens, (None, "stop"), strict=True):
        got.take_step(
            Step(0, token.text, (token.token_id,), 0, "target", (), (token,), finish_reason=reason)
        )
    assert difference(got, answer()) == ""
