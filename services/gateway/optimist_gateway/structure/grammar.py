"""Grammars in llguidance's Lark dialect."""

import json
from collections.abc import Mapping

from optimist_gateway.core.content import (
    ChoiceContent,
    Content,
    Function,
    JsonContent,
    LarkContent,
    RegexContent,
    Structure,
    ToolUse,
)
from optimist_gateway.core.error import FieldError, Path
from optimist_gateway.structure.schema import SchemaError, plain_schema
from optimist_gateway.structure.tool_format import ToolFormat

MAX_WHITE_SPACE = 64
"""Most characters between two values of JSON: a model that loves white space ends all the same."""
MAX_PART_SPACE = 8
"""Most white space between two parts of a tool call."""
_SPACE = r"[ \n\r\t]"
_TEXT = r"(.|\n)*"


def grammar(structure: Structure, form: ToolFormat, markers: Mapping[str, int]) -> str:
    """Returns the grammar of an answer.

    Args:
        structure: What the answer is to be.
        form: How the model writes tool calls.
        markers: Parts of the form that are special tokens, with their ids.

    Raises:
        FieldError: A schema cannot be followed.
    """
    content, tools = structure.content, structure.tools
    if isinstance(content, LarkContent):
        return content.source
    text = None if content is None else _expression(content)
    if tools is None:
        return _lark({"start": text or "TEXT"})
    rules = _call_rules(tools, form, markers)
    if tools.is_required:
        return _lark({"start": "marker calls", **rules})
    if text is not None:
        return _lark({"start": f"{text} | marker calls", **rules})
    if form.follows_text:
        # One lexeme for both, so that the marker is no text wherever it first comes.
        lead = "lead" if form.marker in markers else "lead[lazy]"
        return _lark({"start": "TEXT | lead calls", lead: f"TEXT {rules.pop('marker')}", **rules})
    return _lark(_plain_or_calls(tools, form) | rules)


def _lark(rules: Mapping[str, str]) -> str:
    lines = [f"{name}: {expression}" for name, expression in rules.items()]
    lines += [f"TEXT: /{_TEXT}/", f"SPACE: /{_SPACE}{{1,{MAX_PART_SPACE}}}/"]
    return "\n".join(lines) + "\n"


def _expression(content: Content) -> str:
    if isinstance(content, JsonContent):
        return _json(content.schema, ("structure",), is_lenient=content.is_lenient)
    if isinstance(content, RegexContent):
        return f"/{_escaped_regex(content.pattern)}/"
    if isinstance(content, ChoiceContent):
        return " | ".join(json.dumps(choice) for choice in content.choices)
    raise FieldError(("structure",), "a grammar cannot be combined with tools")


def _json(schema: Mapping[str, object], path: Path, *, is_lenient: bool) -> str:
    try:
        plain = plain_schema(schema, is_lenient=is_lenient)
    except SchemaError as error:
        raise FieldError(path + error.path, error.message) from None
    options: dict[str, object] = {"whitespace_pattern": f"{_SPACE}{{1,{MAX_WHITE_SPACE}}}"}
    if is_lenient:
        options |= {"lenient": True, "coerce_one_of": True}
    return "%json " + json.dumps({"x-guidance": options, **plain})


def _call_rules(tools: ToolUse, form: ToolFormat, markers: Mapping[str, int]) -> dict[str, str]:
    """Returns the rules of `calls`, which is what follows the marker, and of the marker."""
    indices = range(len(tools.functions))
    rules = {
        "marker": _part(form.marker, markers),
        "calls": _parts((form.opening + form.before_name)[1:], markers) + "call more",
        "call": " | ".join(f"call_{index}" for index in indices),
        "more": _more(tools, form, markers),
    }
    for index, function in enumerate(tools.functions):
        # The quotes are in one lexeme with the name, as they are where this is read as any JSON.
        name = json.dumps(form.quote + function.name + form.quote)
        rules[f"call_{index}"] = f"SPACE? {name} rest_{index}"
        rules[f"rest_{index}"] = _rest(function, form, markers)
    return rules


def _rest(function: Function, form: ToolFormat, markers: Mapping[str, int]) -> str:
    """Returns what follows the name of a call."""
    path = "tools", function.index, "parameters"
    arguments = _json(function.parameters, path, is_lenient=not function.is_strict)
    after_name = _parts(form.after_name, markers)
    return f"{after_name}SPACE? {arguments} {_parts(form.end, markers)}"


def _more(tools: ToolUse, form: ToolFormat, markers: Mapping[str, int]) -> str:
    """Returns what follows the first call."""
    more = ""
    if tools.is_parallel and form.separator is not None:
        more = f"({_parts(form.separator + form.before_name, markers)}call)* "
    return (more + _parts(form.closing, markers)) or '""'


def _plain_or_calls(tools: ToolUse, form: ToolFormat) -> dict[str, str]:
    """Returns the rules of an answer that is either text or calls, which its beginning says."""
    space = f"{_SPACE}{{0,{MAX_PART_SPACE}}}"
    parts = (*form.opening, *form.before_name, form.quote)
    beginning = space + space.join(map(_literal_regex, parts))
    names = [_literal_regex(function.name) for function in tools.functions]
    quote = _literal_regex(form.quote)
    leads = {f"LEAD_{index}": f"/{beginning}{name}{quote}/" for index, name in enumerate(names)}
    led = " | ".join(f"LEAD_{index} rest_{index}" for index in range(len(names)))
    any_name = "|".join(names)
    return {
        "start": "PLAIN | led more",
        "led": led,
        "PLAIN": f"/{_TEXT}/ & ~/{beginning}({any_name}){quote}{_TEXT}/",
        **leads,
    }


def _parts(parts: tuple[str, ...], markers: Mapping[str, int]) -> str:
    """Returns parts with white space before each."""
    return "".join(f"SPACE? {_part(part, markers)} " for part in parts)


def _part(part: str, markers: Mapping[str, int]) -> str:
    return f"<[{markers[part]}]>" if part in markers else json.dumps(part)


def _literal_regex(text: str) -> str:
    return "".join(char if char.isalnum() or char in ' "_:,' else f"\\{char}" for char in text)


def _escaped_regex(pattern: str) -> str:
    """Returns a regular expression as it may stand between slashes."""
    escaped = []
    is_escaped = False
    for char in pattern:
        if char == "\n":
            escaped.append("n" if is_escaped else "\\n")
        elif char == "/" and not is_escaped:
            escaped.append("\\/")
        else:
            escaped.append(char)
        is_escaped = char == "\\" and not is_escaped
    return "".join(escaped)
