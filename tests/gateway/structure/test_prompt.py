"""Conversations with tools, as templates are given them."""

import json
from typing import Any

from optimist_gateway.structure.tool_format import HERMES, JSON, MISTRAL
from optimist_gateway.text.encode import with_tools

CALL = {"name": "f", "arguments": {"a": 1}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def conversation() -> list[dict[str, Any]]:
    calls = [
        {"id": f"call_{index}_0123456789", "type": "function", "function": CALL} for index in "ab"
    ]
    return [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": calls[0]["id"], "name": "f"},
        {"role": "tool", "content": "2", "tool_call_id": calls[1]["id"], "name": "f"},
        {"role": "assistant", "content": "Done"},
    ]


def test_templates_that_know_tools_get_them() -> None:
    assert with_tools(conversation(), [TOOL], HERMES) == (conversation(), [TOOL])
    assert with_tools(conversation(), [], HERMES) == (conversation(), None)


def test_mistral_s_templates_get_ids_of_nine_letters() -> None:
    messages, _ = with_tools(conversation(), [TOOL], MISTRAL)
    call_ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert call_ids == ["123456789", "123456789"]
    assert [message["tool_call_id"] for message in messages[2:4]] == call_ids
    short, _ = with_tools([{"role": "tool", "content": "", "tool_call_id": "_x_"}], [], MISTRAL)
    assert short[0]["tool_call_id"] == "00000000x"


def test_other_templates_get_tools_in_the_system_message() -> None:
    messages, tools = with_tools(conversation(), [TOOL], JSON)
    assert tools is None
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert json.loads(messages[0]["content"].splitlines()[-1]) == TOOL["function"]
    assert json.loads(messages[2]["content"]) == {"tool_calls": [CALL, CALL]}
    results = [json.loads(line) for line in messages[3]["content"].splitlines()]
    assert results == [{"name": "f", "result": "1"}, {"name": "f", "result": "2"}]


def test_a_system_message_keeps_its_text() -> None:
    messages, _ = with_tools([{"role": "system", "content": "Be brief."}], [TOOL], JSON)
    assert len(messages) == 1
    assert messages[0]["content"].startswith("Be brief.\n\nYou may call functions.")


def test_without_tools_nothing_is_added() -> None:
    assert with_tools([{"role": "user", "content": "Go"}], [], JSON) == (
        [{"role": "user", "content": "Go"}],
        None,
    )
