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
from optimist_gateway.text.chat_template import render
from optimist_gateway.text.template_messages import template_messages, with_tools

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
USER_LAST = (
    "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no question') }}{% endif %}"
)
# As of Ministral and Devstral.
SAYS_SOMETHING = (
    "{% for message in messages if message.role == 'assistant' %}"
    "{% if not message.content and not message.tool_calls %}"
    "{{ raise_exception('Assistant message must have a string') }}{% endif %}{% endfor %}"
)
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

SYSTEM, DEVELOPER = Message("system", "Be brief."), Message("developer", "Speak German.")
ASK, MORE = Message("user", "Ask"), Message("user", "More")
SAY, GO_ON = Message("assistant", "Say"), Message("assistant", "Go on")
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


REFUSED: list[tuple[str, list[Message], str]] = [
    # huggingface/text-generation-inference#3198, huggingface/chat-ui#1386: a system message
    (GEMMA2, [SYSTEM, ASK], "<user>Be brief.\n\nAsk"),
    # several of them
    (GEMMA3, [SYSTEM, DEVELOPER, ASK], "Be brief.\n\nSpeak German.\n<user>Ask"),
    (QWEN35, [SYSTEM, DEVELOPER, ASK], "<system>Be brief.\n\nSpeak German.<user>Ask"),
    # one that is not at the beginning keeps its place
    (QWEN35, [ASK, SYSTEM], "<user>Ask\n\nBe brief."),
    (
        QWEN35,
        [SYSTEM, ASK, SAY, DEVELOPER, MORE],
        ("<system>Be brief.<user>Ask<assistant>Say<user>Speak German.\n\nMore"),
    ),
    # nothing but one
    # suitenumerique/conversations#197: neighbours of one role
    (GEMMA2, [ASK, MORE], "<user>Ask\n\nMore"),
    (
        GEMMA3,
        [SYSTEM, ASK, SAY, GO_ON, MORE, ASK],
        "Be brief.\n<user>Ask<assistant>Say\n\nGo on<user>More\n\nAsk",
    ),
    # an answer first, or last
    (GEMMA2, [SAY, ASK], "<user><assistant>Say<user>Ask"),
    (USER_LAST + SHOWS, [ASK, SAY], "<user>Ask<assistant>Say<user>"),
    # an answer that says nothing
    (SAYS_SOMETHING + SHOWS, [ASK, Message("assistant", ""), MORE], "<user>Ask\n\nMore"),
    # calls and results, which are text here
    (GEMMA2, [ASK, CALLED, RESULT], f"<user>Ask<assistant>{CALL_TEXT}<user>{RESULT_TEXT}"),
    (
        GEMMA3,
        [ASK, CALLED, RESULT, MORE],
        f"<user>Ask<assistant>{CALL_TEXT}<user>{RESULT_TEXT}\n\nMore",
    ),
]


@pytest.mark.parametrize(("template", "messages", "expected"), REFUSED)
def test_what_templates_refuse_they_get_in_another_form(
    template: str, messages: list[Message], expected: str
) -> None:
    assert prompt(template, messages) == f"{expected}<assistant>"


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


def test_several_calls_become_messages_of_one_with_their_results() -> None:
    results = [Message("tool", one, tool_call_id=one) for one in "bxa"]
    text = prompt(ONE_CALL, [ASK, called('{"n":1}', '{"n":2}'), *results, MORE], LLAMA3)
    assert text == '<user>Ask<f {"n": 1}><tool>a<f {"n": 2}><tool>b<tool>x<user>More'


def test_a_template_that_knows_calls_gets_them_as_text_where_it_refuses_them() -> None:
    whole = [ASK, CALLED, RESULT, SAY]
    shown = '[CALL]{"name": "f", "arguments": {"a": "b"}}123456789[RESULT]sun123456789'
    assert prompt(MISTRAL3, whole, MISTRAL) == f"<user>Ask{shown}<assistant>Say"
    # Its user may not speak after a result.
    text = prompt(MISTRAL3, [*whole[:3], MORE], MISTRAL)
    assert text == f"<user>Ask<assistant>{CALL_TEXT}<user>{RESULT_TEXT}\n\nMore"


IDS = [("", ""), (None, ""), ("toolu_01A/b:c", "toolu_01A/b:c"), ("x" * 900, "x" * 900)]


@pytest.mark.parametrize(("result_id", "call_id"), IDS)
def test_ids_of_any_kind_and_none_at_all(result_id: str | None, call_id: str) -> None:
    calls = (ToolCall(call_id, "f", "{}"), ToolCall("second", "g", "{}"))
    results = [Message("tool", "1", tool_call_id=result_id), Message("tool", "2")]
    shown = template_messages([ASK, Message("assistant", "", tool_calls=calls), *results])
    expected = call_id or "call_0"
    assert [call["id"] for call in shown[1]["tool_calls"]] == [expected, "second"]
    assert [one["tool_call_id"] for one in shown[2:]] == [expected, "second"]
    assert [one["name"] for one in shown[2:]] == ["f", "g"]
    text = prompt(MISTRAL3, [ASK, called("{}", ids=[call_id]), results[0], SAY], MISTRAL)
    assert "[RESULT]1" in text


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


def test_arguments_of_many_calls_are_read_as_far_as_their_share_goes() -> None:
    large, small = json.dumps({"a": [0] * 5000}), '{"a": "b"}'
    shown = template_messages([called(small, large)] * 200)
    arguments = [call["function"]["arguments"] for one in shown for call in one["tool_calls"]]
    assert arguments == [{"a": "b"}, large] * 200
    (alone,) = template_messages([called(large)])
    assert alone["tool_calls"][0]["function"]["arguments"] == {"a": [0] * 5000}


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


@pytest.mark.parametrize("template", [GEMMA2, QWEN35, SILENT])
@pytest.mark.parametrize("content", ["def f( ", "", "two\n\nlines\n"])
def test_prompts_end_with_what_is_to_be_continued(template: str, content: str) -> None:
    for before in ([], [SYSTEM], [SYSTEM, DEVELOPER, ASK], [SAY, ASK]):
        messages = [*before, Message("assistant", content)]
        options: Any = {"add_generation_prompt": False, "continue_final_message": True}
        text = prompt(template, messages, **options)
        assert text.endswith(content)
        assert text.count("<assistant>") == 1 + (SAY in before)
        assert all(message.content in text for message in before)


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
