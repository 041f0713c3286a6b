"""Has grammars compiled in a process that a grammar may end, and remembers what was found.

Some grammars of a few hundred bytes take minutes or gigabytes to compile whatever limits the
compiler is given, so this is not done where requests are served.
"""

import asyncio
import hashlib
import json
import resource
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple

from llguidance import LLTokenizer

from optimist_common.errors import one_line
from optimist_common.grammar import MAX_LEXER_STATES, find_problem, make_matcher, matching_tokenizer
from optimist_common.model_files.tokenizer import find_file, load_tokenizer
from optimist_common.sampling import MAX_GRAMMAR_BYTES
from optimist_gateway.core.error import ApiError
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.security.beside import (
    LONG,
    ChildDiedError,
    ChildError,
    ChildProcess,
    ChildTimeoutError,
    ChildUnavailableError,
    beside,
)
from optimist_gateway.structure.json_schema import loosened

MAX_COMPILE_SECONDS = 0.5
"""Processor time; the worker compiles a new grammar again, between the steps of all requests."""
MAX_SECONDS = 2 * MAX_COMPILE_SECONDS
"""Processor time of an answer, after which the process ends."""
MAX_MEMORY_BYTES = 2**30


def load_checker(argument: str) -> Callable[[Any], str]:
    """Returns what checks a grammar, a text: no text if it is good, else why it is not.

    Of a schema, an object, it returns what is left of it that compiles, as JSON. The argument is
    JSON with `model`, `tokenizer` (path of its tokenizer.json, empty if its tokenizer is in another
    form), `vocab_size` and `eos_token_ids`.
    """
    description = json.loads(argument)
    sizes = description["vocab_size"], description["eos_token_ids"]
    try:
        tokenizer = matching_tokenizer(_source(**description), *sizes)
    except ValueError as error:
        reason = f"this model cannot follow grammars: {one_line(error)}"
        return lambda question: reason if isinstance(question, str) else "{}"
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # What is loaded with the first grammar is not counted as its time.
    check_grammar("start: /a/", tokenizer)

    def is_good(rule: str) -> bool:
        return not check_grammar(f"start: {rule}\n", tokenizer)

    def answer(question: Any) -> str:
        # By SIGPROF: no handler in Python would be called while a grammar is compiled.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        try:
            if isinstance(question, str):
                return check_grammar(question, tokenizer)
            return json.dumps(loosened(question, is_good))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return answer


def _source(model: str, tokenizer: str, **_others: Any) -> str:
    """Returns the text of a tokenizer.json."""
    if not tokenizer:
        return str(load_tokenizer(model, "--model").backend_tokenizer.to_str())
    with open(tokenizer, encoding="utf-8") as file:  # noqa: PTH123 (no pathlib)
        return file.read()


def check_grammar(grammar: str, tokenizer: LLTokenizer) -> str:
    """Returns what is wrong with a grammar in llguidance's Lark dialect; no text if it is good."""
    size = len(grammar.encode())
    if size > MAX_GRAMMAR_BYTES:
        return f"makes a grammar of {size} bytes; {MAX_GRAMMAR_BYTES} are the most"
    started = time.process_time()
    problem = find_problem(make_matcher(tokenizer, grammar, MAX_LEXER_STATES))
    if problem:
        return problem
    if time.process_time() - started > MAX_COMPILE_SECONDS:
        return "is too complex: it takes too long to compile"
    return ""


MAX_CHECKED = 1024
"""Grammars and schemas whose verdict is remembered."""
_MAX_CHARACTERS = 64 * 1024
"""Of a verdict that is remembered."""
_LOADER = "optimist_gateway.structure.verdicts:load_checker"
# Of wall-clock time, on a machine that may be busy.
_SECONDS = 8 * MAX_SECONDS
_DOUBT_SECONDS = 60.0
"""How long it is remembered that a grammar took too long: the machine may only have been busy."""
_TOO_COMPLEX = "is too complex: it takes too much time or memory to compile"


class _Verdict(NamedTuple):
    """What was found of a grammar or a schema."""

    answer: str
    """Of the process."""
    failure: str = ""
    """Why there is no answer."""
    until: float = inf
    """When to ask again, in seconds of the monotonic clock."""


class Verdicts:
    """Has grammars compiled in a process that may be ended."""

    def __init__(self, model: str) -> None:
        """Sets up without the process; the first grammar starts it.

        The model, a directory or hub name, has a tokenizer.
        """
        self._model = model
        self._tokens: dict[str, Any] = {}
        """What a grammar is checked against, beside the tokenizer."""
        self._process: ChildProcess | None = None
        self._verdicts: dict[bytes, _Verdict] = {}
        """Those that were asked for last are at the end."""

    async def use(self, model: ModelDescription) -> None:
        """Checks from now on what a model can follow whose scheduler describes it so."""
        tokens = {"vocab_size": model.vocab_size, "eos_token_ids": model.eos_token_ids}
        if tokens != self._tokens:
            # Verdicts may mean something else now.
            self._verdicts.clear()
            self._tokens = tokens
            await self.stop()

    async def problem(self, grammar: str) -> str:
        """Returns what is wrong with a grammar in llguidance's Lark dialect; no text if nothing is.

        Raises ApiError if it cannot be checked now.
        """
        verdict = await self._verdict(grammar, grammar.encode())
        return verdict.failure or verdict.answer

    async def loosened(self, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Returns what is left of a schema that a grammar can follow; None if that takes too long.

        Raises ApiError if it cannot be checked now.
        """
        text = await beside(partial(json.dumps, schema), LONG)
        verdict = await self._verdict(schema, text.encode())
        loose: Mapping[str, Any] | None = None if verdict.failure else json.loads(verdict.answer)
        return loose

    async def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def _verdict(self, question: Any, data: bytes) -> _Verdict:
        key = hashlib.sha256(data).digest()
        verdict = self._verdicts.pop(key, None)
        if verdict is None or verdict.until < time.monotonic():
            tokens = self._tokens
            verdict = await self._ask(question)
            if tokens != self._tokens or len(verdict.answer) >= _MAX_CHARACTERS:
                return verdict
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_CHECKED:
            del self._verdicts[next(iter(self._verdicts))]
        return verdict

    async def _ask(self, question: Any) -> _Verdict:
        if self._process is None:
            file = await asyncio.to_thread(find_file, self._model, "tokenizer.json")
            description = {"model": self._model, "tokenizer": str(file or ""), **self._tokens}
            self._process = ChildProcess(_LOADER, json.dumps(description), _SECONDS, "grammars")
        try:
            return _Verdict(await self._process.ask(question))
        except (ChildTimeoutError, ChildDiedError):
            return _Verdict("", _TOO_COMPLEX, time.monotonic() + _DOUBT_SECONDS)
        except ChildError as error:
            return _Verdict("", str(error))
        except ChildUnavailableError as error:
            reason = f"grammars cannot be checked now: {error}"
            raise ApiError(503, reason, code="overloaded") from None
