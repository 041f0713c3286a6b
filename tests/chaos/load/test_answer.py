import copy

import pytest

from tests.chaos.load.answer import Answer, difference, has_duplicates, is_beginning


def chunk(text: str, token_ids: list[int], finish: str | None = None, index: int = 0) -> dict:  # type: ignore[type-arg]
    likely = {"token": text, "logprob": -0.5, "top_logprobs": []}
    choice = {"index": index, "delta": {"content": text}, "token_ids": token_ids}
    choice |= {"finish_reason": finish, "logprobs": {"content": [likely]} if token_ids else None}
    return {"choices": [choice]}


def streamed() -> Answer:
    answer = Answer()
    assert not answer.take(chunk("", []))
    assert answer.take(chunk("a", [1]))
    assert answer.take(chunk("b", [2], "stop"))
    answer.take({"choices": [], "usage": {"completion_tokens": 2}})
    return answer


def test_chunks_are_joined() -> None:
    answer = streamed()
    choice = answer.choices[0]
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("ab", [1, 2], "stop")
    assert answer.completion_tokens == 2
    assert answer.is_complete


def test_a_whole_completion_is_read_the_same() -> None:
    answer = Answer()
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5], "top_logprobs": [{}, {}]}
    choice = {"index": 0, "text": "ab", "token_ids": [1, 2], "finish_reason": "stop"}
    choices = [choice | {"logprobs": logprobs}]
    answer.take({"choices": choices, "usage": {"completion_tokens": 2}})
    assert difference(answer, streamed()) == ""


def test_an_answer_without_its_end_or_usage_is_not_complete() -> None:
    answer = Answer()
    assert not answer.is_complete
    answer.take(chunk("a", [1]))
    assert not answer.is_complete
    answer.take(chunk("", [], "stop"))
    assert not answer.is_complete


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
    other = copy.deepcopy(streamed())
    setattr(other.choices[0], field, value)
    assert field in difference(other, streamed())


def test_usage_and_choices_count_too() -> None:
    other = streamed()
    other.completion_tokens = 3
    assert "completion_tokens" in difference(other, streamed())
    other = streamed()
    other.take(chunk("x", [9], "stop", index=1))
    assert "choices" in difference(other, streamed())


def test_the_last_digits_of_a_logarithm_may_differ() -> None:
    other = streamed()
    other.choices[0].logprobs = [("a", -0.5000001), ("b", -0.5)]
    assert difference(other, streamed()) == ""


def test_what_a_client_has_when_it_leaves_is_a_beginning() -> None:
    begun = Answer()
    begun.take(chunk("a", [1]))
    assert is_beginning(begun, streamed())
    begun.take(chunk("x", [9]))
    assert not is_beginning(begun, streamed())


def test_tokens_that_come_twice_are_duplicates() -> None:
    twice = Answer()
    for _ in range(2):
        twice.take(chunk("a", [1]))
    twice.take(chunk("b", [2], "stop"))
    assert has_duplicates(twice, streamed())
    assert not has_duplicates(streamed(), streamed())
