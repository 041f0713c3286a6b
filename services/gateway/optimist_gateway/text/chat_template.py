"""Renders the model's own chat template."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from optimist_gateway.text.template_messages import forms

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
    template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """Returns the prompt of a conversation.

    The template runs in jinja2's immutable sandbox, and sees nothing but plain JSON values. If it
    refuses the messages, or leaves out what the system says, other `forms` of them are tried.

    Args:
        template: Source of the model's template; never a client's.
        messages: In OpenAI's shape, with the arguments of calls as objects.
        tools: In OpenAI's shape, or None.
        special_tokens: Names and texts that templates know, such as `bos_token`.
        template_kwargs: Further values by name, such as `enable_thinking`.
        add_generation_prompt: Whether to go up to where the answer begins.
        continue_final_message: Whether to end within the last message, at the end of its content.

    Raises:
        Exception: What is wrong with the template, or with the messages for it.
    """

    def render_as(shown: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
        # It is declared to return one text.
        rendered: Any = render_jinja_template(
            conversations=[[dict(message) for message in shown]],
            tools=None if tools is None else [dict(tool) for tool in tools],
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **{**values, **special_tokens},
        )
        texts, _ = rendered
        return str(texts[0])

    given = template_kwargs or {}
    without_effort = {name: one for name, one in given.items() if name != "reasoning_effort"}
    system = [one["content"].strip() for one in messages if one["role"] == "system"]
    texts: list[str] = []
    errors: list[Exception] = []
    # There are templates that know some efforts only.
    for values in (given, without_effort):
        for form in forms([dict(one) for one in messages], is_continued=continue_final_message):
            try:
                texts.append(render_as(form, values))
            except Exception as error:
                # Whatever a template does wrong, it may do right with another form.
                errors.append(error)
                continue
            if all(text in texts[-1] for text in system):
                return texts[-1]
        if texts:
            # It writes what the system says in words of its own.
            return texts[0]
    raise errors[0]
