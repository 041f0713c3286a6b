"""Log-probabilities and provenance through all services, with the bundled model."""

from typing import Any

import pytest
from openai import OpenAI

MODEL = "tiny-edit"
CODE = "def area(width, height):\n    return width * height\n" * 4
MESSAGES: Any = [{"role": "user", "content": f"Rename `width` to `breadth`.\n\n{CODE}"}]
PREDICTION: Any = {"type": "content", "content": CODE}


def test_an_echo_has_the_log_probabilities_of_the_answer(client: OpenAI) -> None:
    """A text is as likely as a prompt as it was as an answer."""
    arguments: Any = {"model": MODEL, "temperature": 0, "echo": True, "logprobs": 2}
    answer = client.completions.create(prompt=CODE, max_tokens=8, **arguments).choices[0]
    again = client.completions.create(prompt=answer.text, max_tokens=0, **arguments).choices[0]
    assert answer.logprobs is not None
    assert again.logprobs is not None
    assert again.text == answer.text
    assert again.logprobs.tokens == answer.logprobs.tokens
    assert again.logprobs.text_offset == answer.logprobs.text_offset
    echoed, expected = again.logprobs.token_logprobs, answer.logprobs.token_logprobs
    assert echoed is not None
    assert expected is not None
    assert echoed[1:] == pytest.approx(expected[1:], abs=0.01)


def test_a_prediction_changes_no_log_probability_and_tells_where_it_was_used(
    client: OpenAI,
) -> None:
    def answer(**extra: Any) -> Any:
        return client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            temperature=0,
            logprobs=True,
            top_logprobs=2,
            extra_body={"include_provenance": True, "include_speculation": True, **extra},
        )

    plain, predicted = answer(), answer(prediction=PREDICTION)
    (one,), (other,) = plain.choices, predicted.choices
    assert one.message == other.message
    pairs = zip(one.logprobs.content, other.logprobs.content, strict=True)
    for expected, got in pairs:
        assert got.token == expected.token
        assert got.logprob == pytest.approx(expected.logprob, abs=0.01)
    segments = other.model_extra["provenance"]
    assert "".join(segment["text"] for segment in segments) == other.message.content
    assert sum(one["num_tokens"] for one in segments) == predicted.usage.completion_tokens
    places = [one for one in segments if "prediction" in one]
    assert places
    for segment in places:
        place = segment["prediction"]
        assert CODE[place["start"] : place["end"]] == segment["text"]
    worth = predicted.usage.model_extra["speculation"]
    assert worth["num_passes"] == sum(worth["accepted_length_histogram"])
    assert worth["num_passes"] < plain.usage.model_extra["speculation"]["num_passes"]
    assert 0 < worth["num_accepted_tokens"] <= worth["num_drafted_tokens"]
