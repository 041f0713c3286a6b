"""Chat templates: of the model only, in a sandbox."""

from typing import Any

import pytest

from optimist_gateway.text.chat_template import render
from tests.gateway.fake_scheduler import tokens
from tests.gateway.harness import CHAT, Gateway

WRITTEN = "{{ 7 * 7 }}{% raw %}"
MESSAGES = [{"role": "user", "content": WRITTEN}]
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ messages.__class__.__base__ }}",
    "{{ raise_exception.__globals__.os }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.append(1) }}",
    "{% set _ = messages.append(1) %}{{ messages }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% set n = namespace(__class__=1) %}{{ n }}",
]
# These show nothing, or fail in other ways.
HARMLESS = [
    "{{ self.__init__.__globals__ }}",
    "{{ range(99999999) | list }}",
    "{% include '/etc/passwd' %}",
    "{{ ''.format.__globals__ }}",
]


def test_a_template_reaches_nothing_but_its_values() -> None:
    before = [dict(message) for message in MESSAGES]
    for template in ESCAPES:
        with pytest.raises(Exception, match=r"unsafe|not safely|undefined|underscore"):
            render(template, MESSAGES, None, {})
    for template in HARMLESS:
        try:
            text = render(template, MESSAGES, None, {})
        except Exception as error:
            text = str(error)
        assert "root:" not in text
        assert "<class" not in text
    assert before == MESSAGES


def test_texts_of_messages_are_no_templates() -> None:
    assert render("{{ messages[0].content }}", MESSAGES, None, {}) == WRITTEN


async def test_requests_bring_no_template(gateway: Gateway) -> None:
    gateway.say("x")
    values: dict[str, Any] = {"chat_template": WRITTEN, "documents": [WRITTEN]}
    values["chat_template_kwargs"] = {"documents": [{"text": WRITTEN}], "name": WRITTEN}
    for name, value in values.items():
        fields: dict[str, Any] = {"messages": MESSAGES, name: value}
        await gateway.answer(CHAT, **fields)
        prompt = gateway.backend.decode(tokens(gateway.adds[-1].prompt_token_ids))
        assert prompt == f"<|user|>{WRITTEN}\n<|assistant|>"


async def test_values_for_a_template_leave_the_rest_of_the_prompt_alone(gateway: Gateway) -> None:
    for name in ("messages", "tools", "chat_template", "add_generation_prompt", "bos_token"):
        error = await gateway.refused(CHAT, messages=MESSAGES, chat_template_kwargs={name: "x"})
        assert error["param"] == "chat_template_kwargs"
        assert error["message"] == f"chat_template_kwargs: {name} must not be among them"
