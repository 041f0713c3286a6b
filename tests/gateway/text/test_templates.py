"""Conversations for templates that refuse them as they are, or leave out a part of them.

The templates are what those of the families in their names refuse, and little more.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core.answer.spans import find_contents
from optimist_gateway.core.request import Message, ToolCall
from optimist_gateway.structure.tool_format import JSON, LLAMA3, MISTRAL, ToolFormat
from optimist_gateway.text.chat_template import render, template_messages, with_tools

ALTERNATES = """
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}
{%- endfor %}"""
SHOWS = """
{%- for message in messages %}{{ '<' + message.role + '>' + message.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
)
GEMMA2 = NO_SYSTEM + ALTERNATES + SHOWS
# It has a system message, which it puts into the first one of the user.
GEMMA3 = f"""
{{%- if messages[0].role == 'system' %}}{{% set first = messages[0].content + '\\n' %}}
{{%- set messages = messages[1:] %}}{{% else %}}{{% set first = '' %}}{{% endif %}}
{{{{- first }}}}{ALTERNATES}{SHOWS}"""
LLAMA2 = f"""
{{%- if messages[0].role == 'system' %}}{{{{ '<<' + messages[0].content + '>>' }}}}
{{%- set messages = messages[1:] %}}{{% endif %}}{ALTERNATES}{SHOWS}"""
SYSTEM_FIRST = """
{%- for message in messages %}{% if message.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}
{%- if messages | selectattr('role', 'equalto', 'user') | list == [] %}
{{- raise_exception('No user query found in messages.') }}{% endif %}"""
QWEN35 = SYSTEM_FIRST + SHOWS
# It leaves out what the system says.
SILENT = """
{%- for message in messages if message.role != 'system' %}
{{- '<' + message.role + '>' + message.content }}{% endfor %}<assistant>"""
ONE_CALL = """
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set called = message.tool_calls[0].function %}
{{- '<' + called.name + ' ' + called.arguments | tojson + '>' }}
{%- else %}{{ '<' + message.role + '>' + message.content }}{% endif %}{% endfor %}"""
# It counts neither calls nor results, and wants ids of nine characters.
MISTRAL3 = """
{%- set ns = namespace(index=0) %}
{%- for message in messages %}
{%- if not (message.role == 'tool' or message.tool_calls) %}
{%- if (message.role == 'user') != (ns.index % 2 == 0) %}
{{- raise_exception('roles must alternate, but for calls and results') }}{% endif %}
{%- set ns.index = ns.index + 1 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- '[CALL]' + call.function | tojson + call.id }}{% endfor %}
{%- elif message.role == 'tool' %}{{ '[RESULT]' + message.content + message.tool_call_id }}
{%- else %}{{ '<' + message.role + '>' + message.content }}{% endif %}{% endfor %}"""
# As of Qwen3-Coder, which writes each argument by itself.
ITEMS = """
{%- for message in messages %}{{ '<' + message.role + '>' + message.content }}
{%- for call in message.tool_calls or [] %}{% for name, value in call.function.arguments.items() %}
{{- name + '=' + value }}{% endfor %}{% endfor %}{% endfor %}"""

SYSTEM = Message("system", "Be brief.")
ASK, MORE = Message("user", "Ask"), Message("user", "More")
SAY = Message("assistant", "Say")
CALL = ToolCall("call_123456789", "f", '{"a": "b"}')
CALLED = Message("assistant", "", tool_calls=(CALL,))
RESULT = Message("tool", "sun", tool_call_id=CALL.id)
CALL_TEXT = '{"tool_calls": [{"name": "f", "arguments": {"a": "b"}}]}'
RESULT_TEXT = '{"name": "f", "result": "sun"}'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def prompt(
    template: str,
    messages: Sequence[Message],
    form: ToolFormat = JSON,
    tools: Sequence[Any] = (),
    **options: Any,
) -> str:
    shown, described = with_tools(template_messages(messages), tools, form)
    return render(template, shown, described, {}, **options)


def test_our_own_description_of_tools_needs_no_system_role() -> None:
    for template in (GEMMA2, SILENT):
        text = prompt(template, [ASK, CALLED, RESULT, MORE], tools=[TOOL])
        assert text.startswith("<user>You may call functions.")
        described, _, rest = text.partition("\n\nAsk<assistant>")
        assert json.loads(described.splitlines()[-1]) == TOOL["function"]
        assert rest == f"{CALL_TEXT}<user>{RESULT_TEXT}\n\nMore<assistant>"


def called(*arguments: Any, ids: Sequence[str] = "abcd") -> Message:
    calls = [ToolCall(one, "f", text) for one, text in zip(ids, arguments, strict=False)]
    return Message("assistant", "", tool_calls=tuple(calls))


def test_a_template_that_knows_calls_gets_them_as_text_where_it_refuses_them() -> None:
    whole = [ASK, CALLED, RESULT, SAY]
    shown = '[CALL]{"name": "f", "arguments": {"a": "b"}}123456789[RESULT]sun123456789'
    assert prompt(MISTRAL3, whole, MISTRAL) == f"<user>Ask{shown}<assistant>Say"
    # Its user may not speak after a result.
    text = prompt(MISTRAL3, [*whole[:3], MORE], MISTRAL)
    assert text == f"<user>Ask<assistant>{CALL_TEXT}<user>{RESULT_TEXT}\n\nMore"


# vllm-project/vllm#43995, ggml-org/llama.cpp#22948: what was cut off is no JSON.
CUT = ['{"a": ', '{"a": "b', "[1]", "5", '"text"', '{"a": NaN}', "{'a': 1}", "[" * 50_000]
CUT += ['{"a":' * 5000, '{"a": [' + "0," * 20_000 + "0]}", '{"a": ' * 101 + "0" + "}" * 101]
OBJECTS = [
    ("", {}),
    ('{"a": 1}', {"a": 1}),
    (json.dumps('{"a": "b"}'), {"a": "b"}),
    ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
    *((text, text) for text in CUT),
]


@pytest.mark.parametrize(("given_text", "expected"), OBJECTS, ids=lambda one: str(one)[:40])
def test_arguments_are_objects_or_the_text_that_was_sent(given_text: Any, expected: Any) -> None:
    (shown,) = template_messages([called(given_text)])
    assert shown["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize("text", CUT[:4])
def test_templates_show_arguments_that_are_no_object(text: str) -> None:
    for template, form in (
        (ITEMS, LLAMA3),
        (ONE_CALL, LLAMA3),
        (MISTRAL3, MISTRAL),
        (GEMMA2, JSON),
    ):
        shown = prompt(
            template, [ASK, called(text), Message("tool", "cut", tool_call_id="a")], form
        )
        assert text in shown or json.dumps(text)[1:-1] in shown
        assert "cut" in shown


def test_the_first_error_is_reported_if_every_form_is_refused() -> None:
    refuses = "{{ raise_exception(messages | length | string + ' messages') }}"
    with pytest.raises(Exception, match=r"^3 messages$"):
        prompt(refuses, [SYSTEM, ASK, SAY])


SWITCHED = "{{ enable_thinking }} {{ reasoning_effort }}"
PICKY = "{% if reasoning_effort == 'odd' %}{{ raise_exception('odd') }}{% endif %}" + SWITCHED


def test_values_for_templates() -> None:
    values = {"enable_thinking": False, "reasoning_effort": "low"}
    assert render(SWITCHED, [], None, {}, values | {"x": 1}) == "False low"
    assert prompt(PICKY, [ASK], template_kwargs={"reasoning_effort": "odd"}) == " "
    assert render("{{ eos_token }}", [], None, {"eos_token": "</s>"}, {"eos_token": 2}) == "</s>"


ROLES = st.sampled_from(["system", "developer", "user", "assistant", "call", "tool"])


@given(st.lists(ROLES, min_size=1, max_size=12), st.sampled_from([GEMMA2, GEMMA3, LLAMA2, QWEN35]))
def test_every_conversation_makes_a_prompt_with_all_that_was_said(
    roles: list[str], template: str
) -> None:
    texts = [f"({index})" for index in range(len(roles))]
    messages = [
        Message("assistant", text, tool_calls=(CALL,)) if role == "call" else Message(role, text)
        for role, text in zip(roles, texts, strict=True)
    ]
    shown = prompt(template, messages)
    places = [shown.find(text) for text in texts]
    assert -1 not in places
    assert places == sorted(places)
    # What was read of the prompt is found in the messages.
    assert [one.message for one in find_contents(shown, texts)] == list(range(len(texts)))


@given(st.lists(ROLES, min_size=1, max_size=12), st.sampled_from([MISTRAL3, ONE_CALL]))
def test_templates_that_know_calls_get_every_conversation_too(
    roles: list[str], template: str
) -> None:
    texts = [f"({index})" for index in range(len(roles))]
    calls = (CALL, ToolCall("second", "g", '{"a": '))
    messages = [
        Message("assistant", "", tool_calls=calls[: 1 + index % 2])
        if role == "call"
        else Message(role, text, tool_call_id="second" if index % 3 else None)
        for index, (role, text) in enumerate(zip(roles, texts, strict=True))
    ]
    shown = prompt(template, messages, MISTRAL if template == MISTRAL3 else LLAMA3)
    assert all(text in shown for role, text in zip(roles, texts, strict=True) if role != "call")
