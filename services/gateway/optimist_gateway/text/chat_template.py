"""Renders the model's own chat template, of messages in forms that it takes."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from optimist_gateway.core.json_text import HEAVY, is_heavier, parse_json
from optimist_gateway.core.request import Function, Message, ToolCall
from optimist_gateway.structure.json_schema import MAX_VALUES, check_json
from optimist_gateway.structure.tool_format import MISTRAL, MISTRAL_ARGS, ToolFormat

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

    Raises whatever is wrong with the template, or with the messages for it.
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


MAX_CALL_VALUES = 100_000
"""JSON values in the arguments of all calls of a conversation, each of which may have its share."""
# Templates know `system`; `developer` is the newer name of the same role in the API.
_TEMPLATE_ROLES = {"developer": "system"}
_MISTRAL_ID_CHARACTERS = 9
_INSTRUCTION = """You may call functions. To call some, answer with nothing but
{"tool_calls": [{"name": "...", "arguments": {...}}]}
where the arguments follow the function's JSON schema. Their results come in the next message. \
The functions are:
"""

TemplateMessage = dict[str, Any]


def template_messages(messages: Sequence[Message]) -> list[TemplateMessage]:
    """Returns the messages as dictionaries with the roles that templates know.

    Calls have OpenAI's shape, but their arguments are objects, as templates expect, or a text where
    it has no object. Results name the call, by their order if they do not say, and the function.
    """
    shown: list[TemplateMessage] = []
    names: dict[str, str] = {}
    unanswered: list[str] = []
    num_values = MAX_CALL_VALUES // max(1, sum(len(message.tool_calls) for message in messages))
    for message in messages:
        role, name = _TEMPLATE_ROLES.get(message.role, message.role), message.name
        one: TemplateMessage = {"role": role, "content": message.content}
        if message.reasoning:
            one["reasoning_content"] = message.reasoning
        if message.tool_calls:
            one["tool_calls"] = [
                _call(call, f"call_{number}", min(num_values, MAX_VALUES))
                for number, call in enumerate(message.tool_calls, len(names))
            ]
            unanswered = [call["id"] for call in one["tool_calls"]]
            names |= {call["id"]: call["function"]["name"] for call in one["tool_calls"]}
        if role == "tool":
            call_id = message.tool_call_id or next(iter(unanswered), "")
            if call_id in unanswered:
                unanswered.remove(call_id)
            one["tool_call_id"] = call_id
            name = name or names.get(call_id)
        shown.append(one | ({"name": name} if name else {}))
    return shown


def _call(call: ToolCall, other_id: str, most: int) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments, most)}
    return {"id": call.id or other_id, "type": "function", "function": function}


def _arguments(given: Mapping[str, Any] | str, most: int) -> dict[str, Any] | str:
    """Returns an object that is given, or that a text has; the text if it has none.

    Texts that may have more than so many values are not read.
    """
    value: Any = given or {}
    try:
        # Some clients write JSON texts of JSON texts.
        for _ in range(2):
            # No value of so many others weighs more, if all are texts with names.
            if isinstance(value, str) and not is_heavier(value.encode(), 2 * HEAVY * most):
                value = parse_json(value)
                check_json(value)
    except (ValueError, RecursionError):
        return str(given)
    if value is None or value == []:
        return {}
    return value if isinstance(value, dict) else str(given)


def with_tools(
    messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], form: ToolFormat
) -> tuple[list[TemplateMessage], list[Mapping[str, Any]] | None]:
    """Returns what a chat template is given for messages and for tools, all in OpenAI's shape.

    The tools are None if there are none, or if the messages describe them.
    """
    if form.in_template:
        if form in (MISTRAL, MISTRAL_ARGS):
            messages = [_with_short_ids(message) for message in messages]
        return list(messages), list(tools) or None
    shown = _without_calls(messages)
    return (_with_instruction(shown, tools) if tools else shown), None


def template_tool(tool: Function) -> dict[str, Any]:
    """Returns a function in OpenAI's shape."""
    described = {} if tool.description is None else {"description": tool.description}
    function = {"name": tool.name, **described, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _with_short_ids(message: TemplateMessage) -> TemplateMessage:
    """Returns a message with ids of nine letters and digits; such templates take no others."""
    shown = dict(message)
    if "tool_call_id" in message:
        shown["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        calls = message["tool_calls"]
        shown["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in calls]
    return shown


def _short_id(call_id: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]", "", call_id)
    return plain[-_MISTRAL_ID_CHARACTERS:].rjust(_MISTRAL_ID_CHARACTERS, "0")


def _with_instruction(
    messages: list[TemplateMessage], tools: Sequence[Mapping[str, Any]]
) -> list[TemplateMessage]:
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    instruction = {"role": "system", "content": _INSTRUCTION + "\n".join(functions)}
    if messages and messages[0]["role"] == "system":
        return [_joined(messages[0], instruction), *messages[1:]]
    return [instruction, *messages]


def _without_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Returns messages with calls and results as text; results that follow each other are one."""
    shown: list[TemplateMessage] = []
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result:
            shown.append({"role": "user", "content": "\n".join(map(_result_text, group))})
        else:
            shown += map(_without_call, group)
    return shown


def _result_text(message: TemplateMessage) -> str:
    named = {"name": message["name"]} if "name" in message else {}
    return json.dumps(named | {"result": message["content"]}, ensure_ascii=False)


def _without_call(message: TemplateMessage) -> TemplateMessage:
    shown = dict(message)
    if calls := shown.pop("tool_calls", None):
        functions = [call["function"] for call in calls]
        text = json.dumps({"tool_calls": functions}, ensure_ascii=False)
        shown["content"] = "\n".join(part for part in (message["content"], text) if part)
    return shown


def forms(
    messages: Sequence[TemplateMessage], *, is_continued: bool
) -> Iterator[list[TemplateMessage]]:
    """Yields messages as they are, then in other forms for templates that refuse these.

    In turn: each call in a message of its own; neighbours of one role as one, with a system message
    at the beginning only, and no empty answers; its text in the first message of the user; calls
    and results as text.
    Each has the arguments of calls as objects first, then as texts. If the last message
    `is_continued`, it stays the last one.
    """
    tried: list[list[TemplateMessage]] = []
    for shape in _shapes(list(messages), is_continued=is_continued):
        for change in (dict, _with_texts):
            form = [change(message) for message in shape]
            if form not in tried:
                tried.append(form)
                yield form


def _shapes(
    messages: list[TemplateMessage], *, is_continued: bool
) -> Iterator[list[TemplateMessage]]:
    yield messages
    yield _with_single_calls(messages)
    kept = len(messages) - 1 if is_continued else None
    said = [
        one
        for number, one in enumerate(messages)
        if number == kept or one["role"] != "assistant" or one["content"] or "tool_calls" in one
    ]
    for one in (said, _without_calls(said)):
        alternating = _alternating(one)
        yield alternating
        plain = _without_system(alternating)
        yield plain
    if not is_continued and plain[-1]["role"] == "assistant":
        yield [*plain, {"role": "user", "content": ""}]


def _with_texts(message: TemplateMessage) -> TemplateMessage:
    """Returns a message with the arguments of calls as texts: some templates add them to text."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return message | {"tool_calls": calls}


def _with_single_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Returns messages with one call each, and the results of each right behind it."""
    placed: list[tuple[int, TemplateMessage]] = []
    places: dict[str, int] = {}
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] != "tool":
            places = {call["id"]: len(placed) + number for number, call in enumerate(calls)}
        if len(calls) < 2:
            placed.append((places.get(message.get("tool_call_id", ""), len(placed)), message))
            continue
        for number, call in enumerate(calls):
            content = "" if number else message["content"]
            placed.append((len(placed), message | {"content": content, "tool_calls": [call]}))
    return [message for _, message in sorted(placed, key=itemgetter(0))]


def _alternating(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Returns messages of the user and of the assistant in turn, the user's first.

    One system message may be before them; the text of later ones is the user's.
    """
    groups: list[list[TemplateMessage]] = []
    for message in messages:
        last = groups[-1][-1] if groups else message | {"role": ""}
        if message["role"] == "system" and last["role"] not in ("", "system"):
            message = message | {"role": "user"}
        # Beside calls, some templates leave text out.
        has_calls = "tool_calls" in last or "tool_calls" in message
        if last["role"] == message["role"] != "tool" and not has_calls:
            groups[-1].append(message)
        else:
            groups.append([message])
    shown = [_joined(*group) for group in groups]
    start = int(bool(shown) and shown[0]["role"] == "system")
    if len(shown) == start or shown[start]["role"] != "user":
        shown.insert(start, {"role": "user", "content": ""})
    return shown


def _without_system(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Returns alternating messages with the system message in the first one of the user."""
    if messages[0]["role"] != "system":
        return messages
    return [_joined(*messages[:2]), *messages[2:]]


def _joined(*messages: TemplateMessage) -> TemplateMessage:
    """Returns messages as one of the last one's role."""
    joined = {name: value for message in messages for name, value in message.items()}
    for name in ("content", "reasoning_content"):
        if name in joined:
            joined[name] = "\n\n".join(one[name] for one in messages if one.get(name))
    return joined
