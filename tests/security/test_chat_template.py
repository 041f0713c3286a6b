"""Chat templates: of the model only, in a sandbox."""

import re
from typing import Any

import pytest

from optimist_gateway.text.chat_template import render
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


@pytest.mark.parametrize("template", ESCAPES + HARMLESS)
def test_a_template_reaches_nothing_but_its_values(template: str) -> None:
    before = [dict(message) for message in MESSAGES]
    try:
        text, is_refused = render(template, MESSAGES, None, {}), False
    except Exception as error:
        text, is_refused = str(error), True
    assert "root:" not in text
    assert "<class" not in text
    assert before == MESSAGES
    if template in ESCAPES:
        assert is_refused
        assert re.search("unsafe|not safely|undefined|underscore", text)


def test_texts_of_messages_are_no_templates() -> None:
    assert render("{{ messages[0].content }}", MESSAGES, None, {}) == WRITTEN


@pytest.mark.parametrize(
    "field", ["chat_template", "chat_template_kwargs", "documents", "add_generation_prompt"]
)
async def test_requests_bring_no_template(gateway: Gateway, field: str) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, field: "{{ 7 * 7 }}"}
    error = await gateway.refused(CHAT, **fields)
    assert error["param"] == field
