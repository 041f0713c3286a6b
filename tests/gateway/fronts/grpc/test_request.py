"""From messages to requests."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from optimist.v1 import inference_pb2
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.core.error import ApiError
from optimist_gateway.core.request import JsonContent, LarkContent, Request, Sampling, Structure
from optimist_gateway.fronts.grpc.messages import generation_request


def message(**fields: Any) -> inference_pb2.GenerateRequest:
    return json_format.ParseDict({"text": "x"} | fields, inference_pb2.GenerateRequest())


def asked_by(**fields: Any) -> Request:
    return generation_request(message(**fields), "tiny")


def chat(**fields: Any) -> inference_pb2.GenerateRequest:
    request = {"chat": {"messages": [{"role": "user", "content": "Hello"}]}} | fields
    return json_format.ParseDict(request, inference_pb2.GenerateRequest())


def test_defaults_are_those_of_the_rest_api() -> None:
    plain = asked_by()
    assert plain == Request(model="tiny", prompts=("x",), names=plain.names, predictions=[])


def test_zeros_that_are_set_are_set() -> None:
    asked = asked_by(sampling={"temperature": 0, "topK": 0, "seed": 0}, numLogprobs=0)
    assert asked.sampling == Sampling(temperature=0.0, top_k=0, seed=0)
    assert asked.num_logprobs == 0


def test_every_option_arrives() -> None:
    asked = asked_by(
        sampling={
            "topP": 0.5,
            "minP": 0.25,
            "presencePenalty": 1,
            "frequencyPenalty": -1,
            "repetitionPenalty": 1.5,
            "logitBias": {"3": -2.0},
        },
        maxTokens=7,
        minTokens=2,
        stop=["a", "b"],
        stopTokenIds=[5],
        ignoreEos=True,
        n=3,
        includeProvenance=True,
        includeSpeculation=True,
        numSpeculativeTokens=0,
        priority=-4,
        cacheSalt="s",
        numLogprobs=20,
    )
    assert asked.sampling == Sampling(
        top_p=0.5,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias={3: -2.0},
    )
    assert (asked.max_tokens, asked.min_tokens, asked.n) == (7, 2, 3)
    assert asked.num_choices == 3
    assert (asked.stop, asked.stop_token_ids, asked.ignore_eos) == (["a", "b"], [5], True)
    assert (asked.include_provenance, asked.include_speculation) == (True, True)
    assert (asked.num_speculative_tokens, asked.priority, asked.cache_salt) == (0, -4, "s")
    assert asked.num_logprobs == 20


def test_structures() -> None:
    array = JsonContent({"type": "array"}, is_lenient=False)
    assert asked_by(jsonSchema='{"type": "array"}').structure == Structure(array)
    any_object = JsonContent({"type": "object"}, is_lenient=False)
    assert asked_by(jsonObject=True).structure == Structure(any_object)
    assert asked_by(grammar="start: /a/").structure == Structure(LarkContent("start: /a/"))
    assert asked_by(jsonObject=False).structure is None


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (inference_pb2.GenerateRequest(), "prompt"),
        (message(sampling={"topP": 2}), "sampling.top_p"),
        (message(sampling={"temperature": "Infinity"}), "sampling.temperature"),
        (message(sampling={"logitBias": {"3": 101}}), "sampling.logit_bias"),
        (message(stop=["a"] * 5), "stop"),
        (message(stop=["a", ""]), "stop[1]"),
        (message(n=0), "n"),
        (message(maxTokens=0), "max_tokens"),
        (message(minTokens=-1), "min_tokens"),
        (message(numLogprobs=21), "num_logprobs"),
        (message(cacheSalt="s" * 300), "cache_salt"),
        (message(jsonSchema="{"), "json_schema"),
        (message(predictions=[{}]), "predictions[0]"),
        (message(predictions=[{"text": "a"}, {"tokenIds": {"ids": [1]}}]), "predictions[1]"),
        (message(predictions=[{"text": "a"}] * 17), "predictions"),
        (chat(chat={"messages": []}), "chat.messages"),
        (chat(chat={"messages": [{"role": "king", "content": ""}]}), "chat.messages[0].role"),
    ],
)
def test_what_is_wrong_is_named(request_message: inference_pb2.GenerateRequest, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        generation_request(request_message, "tiny")
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)


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


def test_every_reason_of_an_answer_has_a_number() -> None:
    from optimist_gateway.fronts.grpc.messages import _REASONS

    assert set(_REASONS) == {reason for reason in FinishReason if not reason.is_failure}
