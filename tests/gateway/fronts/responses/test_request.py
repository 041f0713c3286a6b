"""Requests of /v1/responses."""

from typing import Any

from optimist_gateway.core.error import Path, field_name
from optimist_gateway.core.request import Conversation, JsonContent, Message, Request, ToolCall
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
from optimist_gateway.fronts.openai.responses.endpoint import response_request


def request(**fields: Any) -> Request:
    return response_request(ResponsesBody.model_validate({"model": "tiny", **fields}))


def conversation(**fields: Any) -> Conversation:
    prompt = request(**fields).prompts[0]
    assert isinstance(prompt, Conversation)
    return prompt


CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": ""}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Weather"}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
    },
    CALL | {"id": "fc_1"},
    CALL | {"call_id": "b", "arguments": '{"x":1}'},
    {"type": "function_call_output", "call_id": "a", "output": "sun"},
    {
        "type": "function_call_output",
        "call_id": "b",
        "output": [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}],
    },
]
TOOL = {"type": "function", "name": "look", "parameters": {"properties": {}}, "strict": True}


def test_a_text_is_a_message_of_the_user() -> None:
    asked = request(input="Hello", instructions="Be brief.", max_output_tokens=5, seed=3)
    messages = [Message("system", "Be brief."), Message("user", "Hello")]
    assert list(asked.prompts) == [Conversation(messages, [])]
    assert (asked.max_tokens, asked.sampling.seed) == (5, 3)
    assert (asked.structure, asked.num_logprobs) == (None, None)


def test_items_are_messages() -> None:
    calls = (ToolCall("a", "look", {}), ToolCall("b", "look", {"x": 1}))
    assert conversation(input=ITEMS).messages == [
        Message("user", "Weather"),
        Message("assistant", "I look.", tool_calls=calls),
        Message("tool", "sun", tool_call_id="a"),
        Message("tool", "rain", tool_call_id="b"),
    ]


def test_a_call_needs_no_message() -> None:
    messages = conversation(input=[{"role": "user", "content": "x"}, CALL]).messages
    assert messages[1] == Message("assistant", "", tool_calls=(ToolCall("a", "look", {}),))


def test_tools_and_form() -> None:
    schema = {"type": "json_schema", "name": "answer", "schema": {"type": "array"}}
    fields = {"input": "x", "tools": [TOOL, TOOL | {"name": "go"}], "text": {"format": schema}}
    choice = {"type": "function", "name": "look"}
    structure = request(**fields, tool_choice=choice).structure
    assert structure is not None
    assert structure.content == JsonContent({"type": "array"}, is_lenient=False)
    assert structure.tools is not None
    assert (structure.tools.is_required, structure.tools.is_parallel) == (True, False)
    (function,) = structure.tools.functions
    assert (function.name, function.is_strict, function.index) == ("look", True, 0)
    assert function.parameters == {"type": "object", "properties": {}}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    structure = request(**fields, tool_choice=allowed).structure
    assert structure is not None
    assert structure.tools is not None
    assert [function.name for function in structure.tools.functions] == ["look"]
    assert (structure.tools.is_required, structure.tools.is_parallel) == (False, True)
    assert len(conversation(**fields, tool_choice=allowed).tools) == 2
    assert not conversation(**fields, tool_choice="none").tools


def test_predictions_and_logprobs() -> None:
    asked = request(
        input="x",
        prediction={"type": "content", "content": "y"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert (list(asked.predictions), asked.num_logprobs) == (["y"], 2)


def test_errors_name_the_fields_that_came() -> None:
    form = {"type": "json_schema", "name": "answer", "schema": {}}
    names = request(input="x", text={"format": form}, tools=[TOOL], top_p=0.5).names()
    expected: dict[Path, str] = {
        ("prompts",): "input",
        ("structure", "properties", "a", 0): "text.format.schema.properties.a[0]",
        ("tools", 0, "parameters", "not"): "tools[0].parameters.not",
        ("sampling", "logit_bias"): "logit_bias",
        ("min_tokens",): "min_tokens",
    }
    assert {path: field_name(path, names) for path in expected} == expected
