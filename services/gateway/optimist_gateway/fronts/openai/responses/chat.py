"""A request of `/v1/responses` as one of `/v1/chat/completions`."""

from typing import Any

from optimist_gateway.fronts.openai.bodies.generation import AnswerBody
from optimist_gateway.fronts.openai.responses.body import (
    AllowedTools,
    FunctionChoice,
    FunctionTool,
    ResponsesBody,
    SchemaFormat,
)
from optimist_gateway.fronts.openai.responses.input import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    InputMessage,
    parts_text,
)
from optimist_gateway.generation.field_names import FieldNames


def chat_request(body: ResponsesBody) -> tuple[dict[str, Any], FieldNames]:
    """Returns the body of a chat completion, and what its fields are called in the response's."""
    names = {
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }
    answer = body.model_dump(include=set(AnswerBody.model_fields), exclude_unset=True)
    request: dict[str, Any] = {
        **answer,
        "model": body.model,
        "max_completion_tokens": body.max_output_tokens,
        "messages": _messages(body, names),
        "response_format": _response_format(body),
        "stream": body.stream,
    }
    if body.tools:
        request |= {
            "tools": [_tool(tool) for tool in body.tools],
            "tool_choice": _tool_choice(body),
            "parallel_tool_calls": body.parallel_tool_calls,
        }
        names |= {f"tools[{index}].function": f"tools[{index}]" for index in range(len(body.tools))}
        names |= {
            "tool_choice.function": "tool_choice",
            "tool_choice.allowed_tools": "tool_choice",
        }
        if isinstance(body.tool_choice, AllowedTools):
            names |= {
                f"tool_choice.allowed_tools.tools[{index}].function": f"tool_choice.tools[{index}]"
                for index in range(len(body.tool_choice.tools))
            }
    elif body.tool_choice != "auto":
        request["tool_choice"] = _tool_choice(body)
    if body.structured_outputs is not None:
        outputs = body.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        request["structured_outputs"] = outputs
    if body.wants_logprobs:
        request |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return request, FieldNames(names)


def _messages(body: ResponsesBody, names: dict[str, str]) -> list[dict[str, Any]]:
    """Returns the conversation; adds where each of its messages stands in the input."""
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        names["messages[0]"] = names["messages[0].content"] = "instructions"
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        names[f"messages[{len(messages)}]"] = "input"
        names[f"messages[{len(messages)}].content"] = "input"
        return [*messages, {"role": "user", "content": body.input}]
    for index, item in enumerate(body.input):
        _add_item(messages, item, f"input[{index}]", names)
    return messages


def _add_item(
    messages: list[dict[str, Any]], item: InputItem, place: str, names: dict[str, str]
) -> None:
    if isinstance(item, FunctionCallItem):
        _add_call(messages, item, place, names)
        return
    names[f"messages[{len(messages)}]"] = place
    if isinstance(item, FunctionCallOutputItem):
        names[f"messages[{len(messages)}].tool_call_id"] = f"{place}.call_id"
        names[f"messages[{len(messages)}].content"] = f"{place}.output"
        content = parts_text(item.output)
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
    else:
        messages.append(_message(item))


def _message(item: InputMessage) -> dict[str, Any]:
    return {"role": item.role, "content": parts_text(item.content)}


def _add_call(
    messages: list[dict[str, Any]], item: FunctionCallItem, place: str, names: dict[str, str]
) -> None:
    """Adds a call to the assistant's message that it belongs to: one answer is one message."""
    if not messages or messages[-1]["role"] != "assistant":
        names[f"messages[{len(messages)}]"] = place
        messages.append({"role": "assistant", "content": None})
    calls = messages[-1].setdefault("tool_calls", [])
    name = f"messages[{len(messages) - 1}].tool_calls[{len(calls)}]"
    names |= {name: place, f"{name}.id": f"{place}.call_id", f"{name}.function": place}
    function = {"name": item.name, "arguments": item.arguments}
    calls.append({"id": item.call_id, "type": "function", "function": function})


def _response_format(body: ResponsesBody) -> dict[str, Any] | None:
    form = body.text.format if body.text is not None else None
    if form is None:
        return None
    if isinstance(form, SchemaFormat):
        schema = form.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return {"type": form.type, "json_schema": schema}
    return {"type": form.type}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


def _tool_choice(body: ResponsesBody) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, AllowedTools):
        tools = [{"type": "function", "function": {"name": one.name}} for one in choice.tools]
        return {"type": choice.type, "allowed_tools": {"mode": choice.mode, "tools": tools}}
    return choice
