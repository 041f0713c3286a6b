"""From arguments to messages; when calls are made again."""

import json
from dataclasses import fields
from typing import Any

import pytest

from optimist_client import OptimistError, Options, RetryPolicy, SamplingParams
from optimist_client.request import generate_request

CONTENT = {"type": "content", "content": "ab"}


@pytest.mark.parametrize(
    ("prediction", "sent"),
    [
        *[("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([1, 2], [[1, 2]])],
        # As OpenAI's API writes it.
        *[([[1, 2], [3]], [[1, 2], [3]]), (CONTENT, ["ab"]), ([CONTENT, CONTENT], ["ab", "ab"])],
    ],
)
def test_predictions_of_all_kinds(prediction: Any, sent: list[Any]) -> None:
    messages = generate_request("x", {"prediction": prediction}).predictions
    assert [one.text or list(one.token_ids.ids) for one in messages] == sent


def test_sampling_params_have_the_options_of_a_request() -> None:
    assert [field.name for field in fields(SamplingParams)] == list(Options.__annotations__)
    assert SamplingParams().options() == {}
    assert SamplingParams(temperature=0.0, n=2).options() == {"temperature": 0.0, "n": 2}
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_what_is_left_out_is_absent() -> None:
    request = generate_request("x", {})
    assert not request.HasField("max_tokens")
    assert request.sampling.ListFields() == []
    assert request.WhichOneof("structure") is None
    zero = generate_request("x", {"temperature": 0.0, "num_logprobs": 0, "top_k": 0})
    assert zero.sampling.HasField("temperature")
    assert zero.HasField("num_logprobs")
    assert zero.sampling.HasField("top_k")


def test_options_find_their_fields() -> None:
    options: Options = {"seed": -3, "logit_bias": {5: -1.5}, "stop": "end", "stop_token_ids": [4]}
    options |= {"json_schema": {"type": "object"}, "n": 3, "timeout": 4.0}
    request = generate_request("x", options)
    assert request.sampling.seed == -3
    assert dict(request.sampling.logit_bias) == {5: -1.5}
    assert list(request.stop) == ["end"]
    assert json.loads(request.json_schema) == {"type": "object"}
    assert request.n == 3


def test_wrong_options_are_refused() -> None:
    unknown: Any = {"temprature": 1.0}
    with pytest.raises(TypeError, match="temprature"):
        generate_request("x", unknown)
    with pytest.raises(ValueError, match=r"^prediction: must be \{"):
        generate_request("x", {"prediction": {"type": "text", "content": "ab"}})
    with pytest.raises(ValueError, match="only one of"):
        generate_request("x", {"json_object": True, "grammar": "start: /a/"})
    with pytest.raises(ValueError, match="out of range"):
        generate_request("x", {"max_tokens": 2**40})


def error(status: str, retry_after: float | None = None) -> OptimistError:
    return OptimistError("x", status=status, code="x", retry_after=retry_after)


def test_the_server_is_given_the_time_it_asks_for() -> None:
    assert RetryPolicy().wait_seconds(error("RESOURCE_EXHAUSTED", 3.0), 0, None) == 3.0
    assert RetryPolicy().wait_seconds(error("RESOURCE_EXHAUSTED", 3.0), 0, 3.0) is None
    assert RetryPolicy().wait_seconds(error("RESOURCE_EXHAUSTED", 3.0), 0, 3.5) == 3.0
