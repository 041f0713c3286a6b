"""Chat templates with tools, rendered here and in a process of their own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import Message, ToolCall
from optimist_gateway.structure.tool_format import HERMES, JSON, MISTRAL
from optimist_gateway.text.chat_template import render
from optimist_gateway.text.encode import template_messages, with_tools
from optimist_gateway.text.tokenizer import Tokenizer, load_tokenizer

TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Does <it> & more.", "parameters": {"type": "object"}},
}
CONVERSATION = [
    Message("user", "Go"),
    Message("assistant", "", tool_calls=(ToolCall("call_1", "f", {"a": "ä\n<"}),)),
    Message("tool", "done", tool_call_id="call_1"),
]
# The parts of Qwen 2.5's template that tell of tools and calls.
HERMES_TEMPLATE = """
{%- if tools %}{{ '<tools>' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '</tools>\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{%- else %}{{- '<|' + message.role + '|>' + message.content }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
# How templates of another family write arguments: they add text to text.
TEXT_TEMPLATE = """
{%- for message in messages %}{% for call in message.tool_calls or [] %}
{{- call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}{% endfor %}"""


def directory_with(template: str, model_directory: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(model_directory, directory)
    (directory / "chat_template.jinja").write_text(template)
    return directory


async def prompt(directory: Path, tools: list[dict[str, Any]]) -> str:
    tokenizer = load_tokenizer(str(directory))
    shown, described = with_tools(template_messages(CONVERSATION), tools, tokenizer.tool_format)
    return await tokenizer.render_messages(shown, described)


def test_a_template_gets_tools_and_arguments_as_objects() -> None:
    text = render(HERMES_TEMPLATE, template_messages(CONVERSATION), [TOOL], {})
    listed = text[text.index("<tools>\n") + 8 : text.index("</tools>")]
    assert json.loads(listed) == TOOL
    call = text[text.rindex("<tool_call>\n") + 12 : text.rindex("\n</tool_call>")]
    assert json.loads(call) == {"name": "f", "arguments": {"a": "ä\n<"}}
    assert text.endswith("<|tool|>done<|assistant|>")


def test_a_template_that_wants_text_gets_arguments_as_text() -> None:
    text = render(TEXT_TEMPLATE, template_messages(CONVERSATION), None, {})
    assert text == 'f({"a": "ä\\n<"})'


async def test_a_tokenizer_tells_its_format(model_directory: Path, tmp_path: Path) -> None:
    directory = directory_with(HERMES_TEMPLATE, model_directory, tmp_path)
    assert load_tokenizer(str(directory)).tool_format is HERMES
    assert "<tools>" in await prompt(directory, [TOOL])
    assert "<tools>" not in await prompt(directory, [])
    assert load_tokenizer(str(directory), "json").tool_format.name == "json"


async def test_a_template_may_refuse_and_a_slow_one_is_ended(
    model_directory: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    slow = (
        "{% if messages[0].content == 'slow' %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        "{% elif messages[0].content == 'bad' %}{{ raise_exception('begin with a user') }}"
        "{% endif %}{{ messages[0].content }}"
    )
    directory = directory_with(slow, model_directory, tmp_path)
    limited = load_tokenizer(str(directory), template_seconds=1.0)
    try:
        with pytest.raises(FieldError, match="begin with a user"):
            await limited.render_messages([{"role": "user", "content": "bad"}])
        with pytest.raises(FieldError, match="longer than 1 seconds"):
            await limited.render_messages([{"role": "user", "content": "slow"}])
        text = await limited.render_messages([{"role": "user", "content": "quick"}])
    finally:
        await limited.stop()
    assert text == "quick"


F_CALL = {"name": "f", "arguments": {"a": 1}}
F_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def conversation() -> list[dict[str, Any]]:
    calls = [
        {"id": f"call_{index}_0123456789", "type": "function", "function": F_CALL} for index in "ab"
    ]
    return [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": calls[0]["id"], "name": "f"},
        {"role": "tool", "content": "2", "tool_call_id": calls[1]["id"], "name": "f"},
        {"role": "assistant", "content": "Done"},
    ]


def test_mistral_s_templates_get_ids_of_nine_letters() -> None:
    messages, _ = with_tools(conversation(), [F_TOOL], MISTRAL)
    call_ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert call_ids == ["123456789", "123456789"]
    assert [message["tool_call_id"] for message in messages[2:4]] == call_ids
    short, _ = with_tools([{"role": "tool", "content": "", "tool_call_id": "_x_"}], [], MISTRAL)
    assert short[0]["tool_call_id"] == "00000000x"


def test_other_templates_get_tools_in_the_system_message() -> None:
    messages, tools = with_tools(conversation(), [F_TOOL], JSON)
    assert tools is None
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert json.loads(messages[0]["content"].splitlines()[-1]) == F_TOOL["function"]
    assert json.loads(messages[2]["content"]) == {"tool_calls": [F_CALL, F_CALL]}
    results = [json.loads(line) for line in messages[3]["content"].splitlines()]
    assert results == [{"name": "f", "result": "1"}, {"name": "f", "result": "2"}]


def test_a_system_message_keeps_its_text() -> None:
    messages, _ = with_tools([{"role": "system", "content": "Be brief."}], [F_TOOL], JSON)
    assert len(messages) == 1
    assert messages[0]["content"].startswith("Be brief.\n\nYou may call functions.")
