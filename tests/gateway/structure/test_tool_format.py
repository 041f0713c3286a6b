"""Formats of tool calls, found by chat templates."""

import pytest

from optimist_gateway.structure.tool_format import (
    FORMATS,
    HERMES,
    JSON,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    ToolFormat,
    tool_format,
)

QWEN = '{% if tools %}...<tool_call>\\n{"name": <function-name>, "arguments": ...}{% endif %}'
TEMPLATES = [
    ("", JSON),
    ("{{ messages[0].content }}", JSON),
    ("{% for toolset in x %}", JSON),
    (QWEN, HERMES),
    (QWEN + "<function=example>", JSON),
    (QWEN + "<arg_key>", JSON),
    ("{% if tools is not none %}[TOOL_CALLS] [{% endif %}", MISTRAL),
    ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{% endif %}", MISTRAL_ARGS),
    ("{% if tools %}Environment: ipython{% endif %}", LLAMA3),
    ("{% if tools %}<|python_tag|>{% endif %}", LLAMA3),
    ("{% if tools %}<function_calls>{% endif %}", JSON),
]


@pytest.mark.parametrize(("template", "form"), TEMPLATES)
def test_templates_tell(template: str, form: ToolFormat) -> None:
    assert tool_format("auto", template) is form


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_decides_whatever_the_template(name: str) -> None:
    assert tool_format(name, QWEN) is FORMATS[name]
