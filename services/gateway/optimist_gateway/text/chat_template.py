"""Renders the model's own chat template."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers.utils.chat_template_utils import (
    _compile_jinja_template,
    render_jinja_template,
)

RENDERER = "optimist_gateway.text.chat_template:load_renderer"
"""What `ChildProcess` loads to render."""


def load_renderer(_argument: str) -> Callable[[Any], str]:
    """Returns what renders the arguments of `render`, as one JSON object by name."""
    return lambda value: render(**value)


def check_template(template: str) -> None:
    """Raises jinja2's error if a template is not one, without running or compiling any of it."""
    _compile_jinja_template("").environment.parse(template)


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    special_tokens: Mapping[str, Any],
    add_generation_prompt: bool = True,
) -> str:
    """Returns the prompt of a conversation.

    The template runs in jinja2's immutable sandbox, and sees nothing but plain JSON values. Most
    templates take the arguments of calls as objects; those that fail on them get them as text.

    Args:
        template: Source of the model's template; never a client's.
        messages: In OpenAI's shape, with the arguments of calls as objects.
        tools: In OpenAI's shape, or None.
        special_tokens: Names and texts that templates know, such as `bos_token`.
        add_generation_prompt: Whether to go up to where the answer begins.

    Raises:
        Exception: What is wrong with the template, or with the messages for it.
    """

    def render_as(shown: Sequence[Mapping[str, Any]]) -> str:
        # It is declared to return one text.
        rendered: Any = render_jinja_template(
            conversations=[[dict(message) for message in shown]],
            tools=None if tools is None else [dict(tool) for tool in tools],
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **special_tokens,
        )
        texts, _ = rendered
        return str(texts[0])

    try:
        return render_as(messages)
    except TypeError:
        if not any("tool_calls" in message for message in messages):
            raise
        return render_as([_with_text(one) for one in messages])


def _with_text(message: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(message)
    if "tool_calls" in message:
        shown["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": _text(call["function"])}}
            for call in message["tool_calls"]
        ]
    return shown


def _text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
