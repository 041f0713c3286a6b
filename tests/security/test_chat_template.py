"""Chat templates: of the model only, in a sandbox."""

from typing import Any

import pytest

from optimist_gateway.text.chat_template import render
from tests.gateway.harness import CHAT, Gateway

MESSAGES = [{"role": "user", "content": "{{ 7 * 7 }}"}]
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.__class__.__base__ }}",
    "{% set _ = messages.append(1) %}{{ messages }}",
    "{{ range(99999999) | list }}",
    "{% include '/etc/passwd' %}",
    "{{ ''.format.__globals__ }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_reaches_nothing_but_its_values(template: str) -> None:
    before = [dict(message) for message in MESSAGES]
    try:
        text = render(template, MESSAGES, None, {})
    except Exception as error:
        text = str(error)
    assert "root:" not in text
    assert "<class" not in text
    assert before == MESSAGES


def test_texts_of_messages_are_no_templates() -> None:
    assert render("{{ messages[0].content }}", MESSAGES, None, {}) == "{{ 7 * 7 }}"


@pytest.mark.parametrize(
    "field", ["chat_template", "chat_template_kwargs", "documents", "add_generation_prompt"]
)
async def test_requests_bring_no_template(gateway: Gateway, field: str) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, field: "{{ 7 * 7 }}"}
    error = await gateway.refused(CHAT, **fields)
    assert error["param"] == field
