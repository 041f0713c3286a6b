"""Conversations with tools, for chat templates that know tools and for those that do not."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from optimist_gateway.structure.tool_format import MISTRAL, MISTRAL_ARGS, ToolFormat

_MISTRAL_ID_CHARACTERS = 9
_INSTRUCTION = """You may call functions. To call some, answer with nothing but
{"tool_calls": [{"name": "...", "arguments": {...}}]}
where the arguments follow the function's JSON schema. Their results come in the next message. \
The functions are:
"""

TemplateMessage = dict[str, Any]


def with_tools(
    messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], form: ToolFormat
) -> tuple[list[TemplateMessage], list[Mapping[str, Any]] | None]:
    """Returns what a chat template is given for messages and tools.

    Args:
        messages: In OpenAI's shape, with arguments as objects.
        tools: In OpenAI's shape; those of which the model is to know.
        form: How the model writes calls.

    Returns:
        The messages, and the tools; None if there are none or the messages describe them.
    """
    if form.in_template:
        if form in (MISTRAL, MISTRAL_ARGS):
            messages = [_with_short_ids(message) for message in messages]
        return list(messages), list(tools) or None
    shown = _without_calls(messages)
    return (_with_instruction(shown, tools) if tools else shown), None


def _with_short_ids(message: TemplateMessage) -> TemplateMessage:
    """Returns a message with ids of nine letters and digits; such templates take no others."""
    shown = dict(message)
    if "tool_call_id" in message:
        shown["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        calls = message["tool_calls"]
        shown["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in calls]
    return shown


def _short_id(call_id: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]", "", call_id)
    return plain[-_MISTRAL_ID_CHARACTERS:].rjust(_MISTRAL_ID_CHARACTERS, "0")


def _with_instruction(
    messages: list[TemplateMessage], tools: Sequence[Mapping[str, Any]]
) -> list[TemplateMessage]:
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    instruction = _INSTRUCTION + "\n".join(functions)
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        content = f"{first['content']}\n\n{instruction}"
        return [first | {"content": content}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def _without_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Returns messages with calls and results as text; results that follow each other are one."""
    shown: list[TemplateMessage] = []
    previous = ""
    for message in messages:
        if message["role"] == "tool":
            result = {"name": message.get("name"), "result": message["content"]}
            text = json.dumps(result, ensure_ascii=False)
            if previous == "tool":
                shown[-1]["content"] += f"\n{text}"
            else:
                shown.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            shown.append({"role": message["role"], "content": _with_calls(message)})
        else:
            shown.append(message)
        previous = message["role"]
    return shown


def _with_calls(message: TemplateMessage) -> str:
    calls = [call["function"] for call in message["tool_calls"]]
    text = json.dumps({"tool_calls": calls}, ensure_ascii=False)
    return "\n".join(part for part in (message["content"], text) if part)
