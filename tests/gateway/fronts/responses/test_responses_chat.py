"""Requests of /v1/responses as requests of /v1/chat/completions."""

from typing import Any

from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
from optimist_gateway.fronts.openai.responses.chat import chat_request


def translated(**fields: Any) -> dict[str, Any]:
    body, _ = chat_request(ResponsesBody.model_validate({"model": "tiny", **fields}))
    return body


def renamed(param: str, **fields: Any) -> str | None:
    _, names = chat_request(ResponsesBody.model_validate({"model": "tiny", **fields}))
    return names.renamed(ApiError(400, "wrong", param=param)).param


CONVERSATION = [
    {"role": "user", "content": [{"type": "input_text", "text": "Weather"}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
    },
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}", "id": "fc_1"},
    {"type": "function_call", "call_id": "b", "name": "look", "arguments": '{"x":1}'},
    {"type": "function_call_output", "call_id": "a", "output": "sun"},
    {
        "type": "function_call_output",
        "call_id": "b",
        "output": [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}],
    },
]


def test_a_text_is_a_message_of_the_user() -> None:
    body = translated(input="Hello", instructions="Be brief.", max_output_tokens=5, seed=3)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert body["max_completion_tokens"] == 5
    assert body["seed"] == 3
    assert "tools" not in body
    assert "logprobs" not in body


def test_items_are_messages() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}},
    ]
    assert translated(input=CONVERSATION)["messages"] == [
        {"role": "user", "content": "Weather"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "tool", "tool_call_id": "b", "content": "rain"},
    ]


def test_a_call_needs_no_message() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    user = {"role": "user", "content": "x"}
    messages = translated(input=[user, call])["messages"]
    assert messages[1]["role"] == "assistant"
    assert messages[1]["content"] is None
    assert len(messages[1]["tool_calls"]) == 1


def test_tools_and_form() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
    schema = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
    body = translated(
        input="x",
        tools=[tool],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        text={"format": schema},
    )
    function = {"name": "look", "parameters": {"type": "object"}, "strict": True}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert body["parallel_tool_calls"] is False
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [tool | {"type": "function"}]}
    allowed["tools"] = [{"type": "function", "name": "look"}]
    body = translated(input="x", tools=[tool], tool_choice=allowed)
    assert body["tool_choice"]["allowed_tools"] == {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "look"}}],
    }


def test_predictions_and_logprobs() -> None:
    body = translated(
        input="x",
        prediction={"type": "content", "content": "y"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert body["prediction"]["content"] == "y"
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)


def test_errors_name_the_fields_that_came() -> None:
    assert renamed("messages", input="x") == "input"
    assert renamed("messages[0].content", input="x") == "input"
    assert renamed("messages[0].content", input="x", instructions="y") == "instructions"
    assert renamed("messages[1].content", input="x", instructions="y") == "input"
    assert renamed("messages[1].tool_calls[1].function.arguments", input=CONVERSATION) == (
        "input[3].arguments"
    )
    assert renamed("messages[2].content", input=CONVERSATION) == "input[4].output"
    assert renamed("messages[2].tool_call_id", input=CONVERSATION) == "input[4].call_id"
    assert renamed("response_format.json_schema.schema", input="x") == "text.format.schema"
    tool = {"type": "function", "name": "look"}
    assert renamed("tools[0].function.parameters", input="x", tools=[tool]) == "tools[0].parameters"
    assert renamed("max_completion_tokens", input="x") == "max_output_tokens"
