"""What compares answers sees every way in which one can be wrong."""

import pytest

from tests.chaos.load.answer import (
    Answer,
    Choice,
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


def test_equal_is_equal_but_for_the_last_digits_of_a_logarithm() -> None:
    assert difference(answer(logprobs=[("a", -0.5000001), ("b", -0.5)]), answer()) == ""


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


def test_usage_and_choices_count_too() -> None:
    right = answer()
    assert "completion_tokens" in difference(Answer(right.choices, 3), right)
    assert "choices" in difference(Answer(right.choices | {1: Choice()}, 2), right)


def test_beginnings_and_tokens_that_come_twice_are_known() -> None:
    assert is_beginning(answer(text="a", token_ids=[1]), answer())
    assert not is_beginning(answer(text="ax", token_ids=[1, 9]), answer())
    assert has_duplicates(answer(token_ids=[1, 1, 2]), answer())
    assert not has_duplicates(answer(), answer())
