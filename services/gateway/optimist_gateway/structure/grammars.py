"""Grammars of requests in llguidance's Lark dialect, checked before anything is generated."""

import hashlib
import json
import pathlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from optimist_gateway.core.error import ApiError, FieldError, Path
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
from optimist_gateway.security.child_process import (
    ChildDiedError,
    ChildError,
    ChildProcess,
    ChildTimeoutError,
    ChildUnavailableError,
)
from optimist_gateway.structure.check_child import MAX_COMPILE_SECONDS
from optimist_gateway.structure.schema import SchemaError, plain_schema
from optimist_gateway.structure.tool_format import ToolFormat

MAX_WHITE_SPACE = 64
"""Most characters between two values of JSON: a model that loves white space ends all the same."""
MAX_PART_SPACE = 8
"""Most white space between two parts of a tool call."""
_SPACE = r"[ \n\r\t]"
_OPTION = "whitespace_pattern"
_TEXT = r"(.|\n)*"
_CHOICE = "CHOICE"


def grammar(structure: Structure, form: ToolFormat, markers: Mapping[str, int]) -> str:
    """Returns the grammar of an answer; raises FieldError if a schema cannot be followed.

    The markers are the parts of the form that are special tokens, with their ids.
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
        return _CHOICE
    raise FieldError(("structure",), "a grammar cannot be combined with tools")


def _json(schema: Mapping[str, object], path: Path, *, is_lenient: bool) -> str:
    try:
        plain = plain_schema(schema, is_lenient=is_lenient)
    except SchemaError as error:
        raise FieldError(path + error.path, error.message) from None
    options: dict[str, object] = {_OPTION: f"{_SPACE}{{1,{MAX_WHITE_SPACE}}}"}
    if is_lenient:
        options |= {"lenient": True, "coerce_one_of": True}
    return "%json " + json.dumps({"x-guidance": options, **plain})


def allow_white_space(grammar: str) -> str:
    """Returns a grammar of an answer with as much white space in its JSON as the model likes."""
    bounded, free = (
        json.dumps({_OPTION: f"{_SPACE}{number}"})[:-1]
        for number in (f"{{1,{MAX_WHITE_SPACE}}}", "+")
    )
    return grammar.replace(bounded, free)


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


MAX_CHECKED = 1024
"""Grammars whose verdict is remembered."""
_LOADER = "optimist_gateway.structure.check_child:load_checker"
# Of wall-clock time, on a machine that may be busy.
_SECONDS = 8 * MAX_COMPILE_SECONDS
_DOUBT_SECONDS = 60.0
"""How long it is remembered that a grammar took too long: the machine may only have been busy."""
_TOO_COMPLEX = "is too complex: it takes too much time or memory to compile"


class _Tokens(NamedTuple):
    """What a grammar is checked against, beside the tokenizer."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]


class _Verdict(NamedTuple):
    """What was found of a grammar."""

    problem: str
    """What is wrong with it; no text if nothing is."""
    until: float = inf
    """When it is to be checked again, in seconds of the monotonic clock."""


class Grammars:
    """Makes grammars and has them compiled in a process that may be ended."""

    def __init__(self, model: str, form: ToolFormat, token_id: Callable[[str], int | None]) -> None:
        """Sets up without the process; the first grammar starts it.

        The model, a directory or hub name, has a tokenizer.json; `token_id` returns the id of a
        special token by its text.
        """
        self.form = form
        ids = {part: token_id(part) for part in form.parts}
        self._markers = {part: number for part, number in ids.items() if number is not None}
        self._model = model
        self._tokens: _Tokens | None = None
        self._process: ChildProcess | None = None
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()

    @property
    def marker_ids(self) -> Sequence[int]:
        """Special tokens that are parts of calls."""
        return list(self._markers.values())

    async def grammar(self, structure: Structure, model: ModelDescription) -> str:
        """Returns the grammar of an answer, in llguidance's Lark dialect.

        Raises:
            FieldError: There is none, or it is too complex.
            ApiError: It cannot be checked now.
        """
        # Of the largest schemas it takes a while.
        source = await beside(partial(grammar, structure, self.form, self._markers), LONG)
        tokens = _Tokens(model.vocab_size, tuple(model.eos_token_ids))
        if tokens != self._tokens:
            # They may mean something else now.
            self._verdicts.clear()
            self._tokens = tokens
            await self.stop()
        verdict = await self._verdict(source, tokens)
        if verdict.problem:
            path = "tools" if structure.content is None else "structure"
            raise FieldError((path,), verdict.problem)
        return source

    async def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def _verdict(self, source: str, tokens: _Tokens) -> _Verdict:
        key = hashlib.sha256(source.encode()).digest()
        verdict = self._verdicts.get(key)
        if verdict is None or verdict.until < time.monotonic():
            verdict = await self._check(source, tokens)
            if tokens == self._tokens:
                self._verdicts[key] = verdict
            if len(self._verdicts) > MAX_CHECKED:
                self._verdicts.popitem(last=False)
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
        return verdict

    async def _check(self, source: str, tokens: _Tokens) -> _Verdict:
        if self._process is None:
            description = {"tokenizer": str(self._tokenizer_file()), **tokens._asdict()}
            self._process = ChildProcess(_LOADER, json.dumps(description), _SECONDS, "grammars")
        try:
            return _Verdict(await self._process.ask(source))
        except (ChildTimeoutError, ChildDiedError):
            return _Verdict(_TOO_COMPLEX, time.monotonic() + _DOUBT_SECONDS)
        except ChildError as error:
            return _Verdict(str(error))
        except ChildUnavailableError as error:
            reason = f"grammars cannot be checked now: {error}"
            raise ApiError(503, reason, code="overloaded") from None

    def _tokenizer_file(self) -> pathlib.Path:
        directory = pathlib.Path(self._model).expanduser()
        if directory.is_dir():
            path = directory / "tokenizer.json"
        else:
            from huggingface_hub import try_to_load_from_cache

            path = pathlib.Path(str(try_to_load_from_cache(self._model, "tokenizer.json")))
        if not path.is_file():
            reason = "this model has no tokenizer.json, so its answers cannot be held to a form"
            raise ApiError(400, reason, code="unsupported_parameter")
        return path
