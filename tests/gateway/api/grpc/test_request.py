"""From messages to requests."""

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist.v1 import inference_pb2
from optimist_common.sampling import SamplingParams
from optimist_gateway.api.grpc.messages import generation_request, read_request
from optimist_gateway.core.error import ApiError
from optimist_gateway.core.request import Request


def message(**fields: Any) -> inference_pb2.GenerateRequest:
    return json_format.ParseDict({"text": "x"} | fields, inference_pb2.GenerateRequest())


def asked_by(**fields: Any) -> Request:
    return generation_request(message(**fields), "tiny")


def expected(**fields: Any) -> Request:
    """Returns a request with the defaults of the REST API."""
    return Request(model="tiny", prompts=("x",), names=ANY, predictions=[], **fields)


def test_defaults_and_zeros_that_are_set() -> None:
    assert asked_by() == expected()
    asked = asked_by(sampling={"temperature": 0, "topK": 0, "seed": 0}, numLogprobs=0)
    assert asked == expected(
        sampling=SamplingParams(temperature=0.0, top_k=0), seed=0, num_logprobs=0
    )


def test_every_option_arrives() -> None:
    sampling: dict[str, Any] = {"top_p": 0.5, "min_p": 0.25, "presence_penalty": 1.0}
    sampling |= {"frequency_penalty": -1.0, "repetition_penalty": 1.5}
    fields: dict[str, Any] = {"max_tokens": 7, "min_tokens": 2, "stop": ["a", "b"], "n": 3}
    fields |= {"stop_token_ids": [5], "ignore_eos": True, "priority": -4, "cache_salt": "s"}
    fields |= {"include_provenance": True, "include_speculation": True}
    fields |= {"num_speculative_tokens": 0, "num_logprobs": 20}
    asked = asked_by(sampling=sampling | {"logit_bias": {"3": -2.0}}, **fields)
    wanted = SamplingParams(temperature=1.0, **sampling, logit_bias={3: -2.0})
    assert asked == expected(sampling=wanted, **fields)


KING = {"role": "king", "content": ""}


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (inference_pb2.GenerateRequest(), "prompt"),
        (message(sampling={"topP": 2}), "sampling.top_p"),
        (message(sampling={"logitBias": {"3": 101}}), "sampling.logit_bias"),
        (message(stop=["a", "b" * 1025]), "stop[1]"),
        (message(n=0), "n"),
        (message(jsonSchema="{"), "json_schema"),
        (message(predictions=[{"text": "a"}, {"tokenIds": {"ids": [1]}}]), "predictions[1]"),
        (message(predictions=[{"text": "a"}] * 17), "predictions"),
        (message(text=None, chat={"messages": [KING]}), "chat.messages[0].role"),
    ],
)
def test_what_is_wrong_is_named(request_message: inference_pb2.GenerateRequest, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        generation_request(request_message, "tiny")
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(field)


INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT = st.floats(width=32)
VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: INT32,
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: FLOAT,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.sampled_from(["user", "tool", "{}", "[]", "{}}", "a\0"])
    | st.text(max_size=8),
}


def fill(made: Any, draw: Callable[[Any], Any]) -> Any:
    """Sets any fields of a message to any values; of a oneof the last one counts."""
    for field in draw(st.lists(st.sampled_from(list(made.DESCRIPTOR.fields)), max_size=8)):
        value = getattr(made, field.name)
        if field.name == "logit_bias":
            value.update(draw(st.dictionaries(INT32, FLOAT, max_size=3)))
        elif field.message_type is None:
            drawn = draw(VALUES[field.cpp_type])
            value.append(drawn) if field.is_repeated else setattr(made, field.name, drawn)
        elif field.is_repeated:
            fill(value.add(), draw)
        else:
            fill(value, draw).SetInParent()
    return made


@settings(max_examples=25)
@given(st.data())
def test_any_message_is_a_request_or_names_a_field_of_its_own(data: st.DataObject) -> None:
    request_message = fill(message(), data.draw)
    refused = None
    try:
        generation_request(request_message, "tiny")
    except ApiError as error:
        refused = error
    if refused is not None:
        assert (refused.status, refused.param is None) == (400, False)
        top = str(refused.param).split(".")[0].split("[")[0]
        assert top == "prompt" or top in inference_pb2.GenerateRequest.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x22\x80\x89\x7a" + b"\x0a\x00" * 1_000_000, "too_many_values"),
        (b"\x1a\xc7\xe1\x23\x0a\xc3\xe1\x23" + b"\x05" * 585_923, "too_many_values"),
        (b"\x22\x80\x89\x7a", "invalid_value"),
        (b"\x0a\x01\xff", "invalid_value"),
    ],
    ids=["messages", "tokens", "broken off", "no text"],
)
def test_what_holds_too_much_or_is_none_is_refused_unread(data: bytes, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_request(data)
    assert (refused.value.status, refused.value.code) == (400, code)


def test_a_schema_of_too_many_values_is_not_parsed() -> None:
    asked = message(json_schema='{"enum": [' + "[]," * 100_000 + "1]}")
    with pytest.raises(ApiError, match="more than 20000 values") as refused:
        generation_request(asked, "tiny")
    assert refused.value.param == "json_schema"
