"""Grammars of requests, checked before anything is generated."""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from optimist_gateway.core.content import Structure
from optimist_gateway.core.error import ApiError, FieldError
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.security.child_process import (
    ChildDiedError,
    ChildError,
    ChildProcess,
    ChildTimeoutError,
    ChildUnavailableError,
)
from optimist_gateway.structure.check_child import MAX_COMPILE_SECONDS
from optimist_gateway.structure.grammar import grammar
from optimist_gateway.structure.tool_format import ToolFormat

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

        Args:
            model: Directory or hub name of the model, with a tokenizer.json.
            form: How the model writes tool calls.
            token_id: Returns the id of a special token, by its text; None for other texts.
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
        source = grammar(structure, self.form, self._markers)
        tokens = _Tokens(model.vocab_size, tuple(model.eos_token_ids))
        if tokens != self._tokens:
            # They may mean something else now.
            self._verdicts.clear()
            self._tokens = tokens
            await self.stop()
        verdict = await self._verdict(source, tokens)
        if verdict.problem:
            raise FieldError(
                ("tools",) if structure.content is None else ("structure",), verdict.problem
            )
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
        process = self._running(tokens)
        try:
            return _Verdict(await process.ask(source))
        except (ChildTimeoutError, ChildDiedError):
            return _Verdict(_TOO_COMPLEX, time.monotonic() + _DOUBT_SECONDS)
        except ChildError as error:
            return _Verdict(str(error))
        except ChildUnavailableError as error:
            raise ApiError(
                503, f"grammars cannot be checked now: {error}", code="overloaded"
            ) from None

    def _running(self, tokens: _Tokens) -> ChildProcess:
        if self._process is None:
            description = {
                "tokenizer": str(self._tokenizer_file()),
                "vocab_size": tokens.vocab_size,
                "eos_token_ids": list(tokens.eos_token_ids),
            }
            argument = json.dumps(description)
            self._process = ChildProcess(_LOADER, argument, _SECONDS, "grammars")
        return self._process

    def _tokenizer_file(self) -> Path:
        directory = Path(self._model).expanduser()
        if directory.is_dir():
            path = directory / "tokenizer.json"
        else:
            from huggingface_hub import try_to_load_from_cache

            path = Path(str(try_to_load_from_cache(self._model, "tokenizer.json")))
        if not path.is_file():
            raise ApiError(
                400,
                "this model has no tokenizer.json, so its answers cannot be held to a form",
                code="unsupported_parameter",
            )
        return path
