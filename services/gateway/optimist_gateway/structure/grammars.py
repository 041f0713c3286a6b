"""Grammars of requests in llguidance's Lark dialect, checked before anything is generated."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from optimist_gateway.core.answer.thinking import ThinkingReader
from optimist_gateway.core.error import FieldError, Path
from optimist_gateway.core.request import (
    ChoiceContent,
    Content,
    Function,
    JsonContent,
    LarkContent,
    RegexContent,
    Structure,
    ToolUse,
)
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.security.beside import LONG, beside
from optimist_gateway.structure.json_schema import ANY_OBJECT, any_value, json_rule
from optimist_gateway.structure.tool_format import MAX_PART_SPACE, SPACE, ToolFormat
from optimist_gateway.structure.verdicts import Verdicts

LOOSENING_SECONDS = 30.0
"""How long the schemas of one request are looked at one by one."""
ANY_TEXT = r"(.|\n)*"
TEXT_RULE = f"TEXT: /{ANY_TEXT}/"
SPACE_RULE = f"SPACE: /{SPACE}{{1,{MAX_PART_SPACE}}}/"
"""How grammars of answers name any text, and white space."""
C = TypeVar("C", bound=Content)
_CHOICE = "CHOICE"


def grammar(structure: Structure, form: ToolFormat, markers: Mapping[str, int]) -> str:
    """Returns the grammar of an answer.

    The markers are the ids of special tokens, as which parts of the form are written.
    """
    content, tools = structure.content, structure.tools
    if isinstance(content, LarkContent):
        return content.source
    text = None if content is None else _expression(content)
    named: dict[str, str] = {}
    if isinstance(content, ChoiceContent):
        # One terminal: a row of the parser has room for fewer choices than a request may have.
        named[_CHOICE] = " | ".join(json.dumps(choice) for choice in content.choices)
    if tools is None:
        return _lark({"start": text or "TEXT", **named})
    rules = _call_rules(tools, form, markers)
    if tools.is_required:
        return _lark({"start": "marker calls", **rules})
    if text is not None:
        return _lark({"start": f"{text} | marker calls", **rules, **named})
    if form.follows_text:
        # One lexeme for both, so that the marker is no text wherever it first comes.
        lead = "lead" if form.marker in markers else "lead[lazy]"
        return _lark({"start": "TEXT | lead calls", lead: f"TEXT {rules.pop('marker')}", **rules})
    return _lark(_plain_or_calls(tools, form) | rules)


def literal(text: str) -> str:
    """Returns the regular expression of a text, as it may stand between slashes."""
    return re.escape(text).replace("/", r"\/")


def after_thinking(source: str, thinking: ThinkingReader, markers: Mapping[str, int]) -> str:
    """Returns a grammar of thoughts, if the model has any, and an answer of another grammar.

    Tags that are special tokens, of which the markers have the ids, are these tokens. Others are
    text: then thoughts are one lexeme, which ends with the first closing tag.
    """
    form, is_inside = thinking.form, thinking.is_inside
    opening, closing = map(literal, form.tags)
    begin_id, end_id = map(markers.get, form.tags)
    if begin_id is not None and end_id is not None:
        thoughts = f"thoughts: <[{begin_id}]>{'?' * is_inside} THOUGHT <[{end_id}]>"
    else:
        begin = "" if is_inside else opening
        thoughts = f"thoughts[lazy]: /{begin}{ANY_TEXT}/ {json.dumps(form.closing)}"
        if not is_inside:
            # Or they could be the text in which a call begins.
            source = source.replace(TEXT_RULE, f"{TEXT_RULE} & ~/{opening}{ANY_TEXT}/")
    rules = (
        f"start: {'thoughts SPACE?' if is_inside else '(thoughts SPACE?)?'} answer",
        thoughts,
        f"THOUGHT: /{ANY_TEXT}/ & ~/{ANY_TEXT}{closing}{ANY_TEXT}/",
        SPACE_RULE,
        f"answer: %lark {{\n{source}\n}}\n",
    )
    return "\n".join(rules)


def _lark(rules: Mapping[str, str]) -> str:
    lines = [f"{name}: {expression}" for name, expression in rules.items()]
    return "\n".join([*lines, TEXT_RULE, SPACE_RULE]) + "\n"


def _expression(content: Content) -> str:
    if isinstance(content, JsonContent):
        return json_rule(content.schema, is_lenient=content.is_lenient)
    if isinstance(content, RegexContent):
        # As it may stand between slashes.
        escaped = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
        each = re.findall(r"\\?[\s\S]", content.pattern)
        return f"/{''.join(escaped.get(one, one) for one in each)}/"
    return _CHOICE


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
    arguments = json_rule(function.parameters, is_lenient=not function.is_strict)
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
    space = f"{SPACE}{{0,{MAX_PART_SPACE}}}"
    parts = (*form.opening, *form.before_name, form.quote)
    beginning = space + space.join(map(literal, parts))
    names = [literal(function.name) for function in tools.functions]
    quote = literal(form.quote)
    leads = {f"LEAD_{index}": f"/{beginning}{name}{quote}/" for index, name in enumerate(names)}
    led = " | ".join(f"LEAD_{index} rest_{index}" for index in range(len(names)))
    any_name = "|".join(names)
    return {
        "start": "PLAIN | led more",
        "led": led,
        "PLAIN": f"/{ANY_TEXT}/ & ~/{beginning}({any_name}){quote}{ANY_TEXT}/",
        **leads,
    }


def _parts(parts: tuple[str, ...], markers: Mapping[str, int]) -> str:
    """Returns parts with white space before each."""
    return "".join(f"SPACE? {_part(part, markers)} " for part in parts)


def _part(part: str, markers: Mapping[str, int]) -> str:
    return f"<[{markers[part]}]>" if part in markers else json.dumps(part)


class Grammars:
    """Makes the grammars of answers, of what compiles."""

    def __init__(self, model: str, form: ToolFormat, markers: Mapping[str, int]) -> None:
        """Sets up without the process that compiles; the first grammar starts it.

        The model, a directory or hub name, has a tokenizer; the markers are the ids of special
        tokens by their texts.
        """
        self.form, self._markers = form, markers
        self._verdicts = Verdicts(model)

    async def stop(self) -> None:
        """Ends the process."""
        await self._verdicts.stop()

    async def grammar(
        self, structure: Structure, model: ModelDescription, thinking: ThinkingReader | None = None
    ) -> str:
        """Returns the grammar of an answer, in llguidance's Lark dialect.

        If the model thinks, it does so before. Of schemas that need not be followed wholly, it has
        what can be compiled. Raises FieldError if there is none, or if it is too complex, and
        ApiError if it cannot be checked now.
        """
        await self._verdicts.use(model)
        # What is no token of the model is written as text.
        known = {text: one for text, one in self._markers.items() if one < model.vocab_size}
        source, problem = await self._checked(structure, known, thinking)
        if problem:
            structure = await self._loosened(structure)
            source, problem = await self._checked(structure, known, thinking)
        share = 0.0
        while problem and (looser := _looser(structure, share)) is not None:
            structure, share = looser, 0.5
            source, problem = await self._checked(structure, known, thinking)
        if problem:
            raise FieldError(("structure" if structure.tools is None else "tools",), problem)
        return source

    async def _checked(
        self,
        structure: Structure,
        markers: Mapping[str, int],
        thinking: ThinkingReader | None = None,
    ) -> tuple[str, str]:
        """Returns a grammar, and what is wrong with it."""
        # Of the largest schemas it takes a while.
        source = await beside(partial(grammar, structure, self.form, markers), LONG)
        if thinking is not None:
            source = after_thinking(source, thinking, markers)
        return source, await self._verdicts.problem(source)

    async def _loosened(self, structure: Structure) -> Structure:
        """Returns a structure of schemas that compile, each alone.

        What there is no time for is left as it is, or may be any value. Raises FieldError for what
        has to be followed wholly and cannot.
        """
        deadline = time.monotonic() + LOOSENING_SECONDS
        content, tools = structure.content, structure.tools
        if content is not None:
            content = await self._compiled(content, ("structure",), "", deadline)
        if tools is not None:
            functions = []
            for one in tools.functions:
                path = "tools", one.index, "parameters"
                arguments = JsonContent(one.parameters, is_lenient=not one.is_strict)
                arguments = await self._compiled(arguments, path, f"{one.name}: ", deadline)
                functions.append(replace(one, parameters=arguments.schema))
            tools = replace(tools, functions=functions)
        return replace(structure, content=content, tools=tools)

    async def _compiled(self, content: C, path: Path, name: str, deadline: float) -> C:
        has_time = time.monotonic() < deadline
        if isinstance(content, JsonContent) and content.is_lenient:
            schema = await self._verdicts.loosened(content.schema) if has_time else None
            return replace(content, schema=any_value(content.schema) if schema is None else schema)
        if has_time:
            # A form alone has no calls, which markers are for.
            _, problem = await self._checked(Structure(content), {})
            if problem:
                raise FieldError(path, name + problem)
        return content


def _looser(structure: Structure, share: float) -> Structure | None:
    """Returns a structure in which more functions take any object, those of the largest schemas.

    At least one more, and so large a share of those that do not yet. None: all do that need not be
    followed wholly.
    """
    tools = structure.tools
    functions = [] if tools is None else [*tools.functions]
    followed = [one for one in functions if not one.is_strict and one.parameters != ANY_OBJECT]
    if tools is None or not followed:
        return None
    followed.sort(key=lambda one: len(json.dumps(one.parameters)), reverse=True)
    loose = {one.index for one in followed[: max(1, int(share * len(followed)))]}
    changed = [
        replace(one, parameters=ANY_OBJECT) if one.index in loose else one for one in functions
    ]
    return replace(structure, tools=replace(tools, functions=changed))
