"""What a process that may be ended says of grammars and schemas, remembered."""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple

from optimist_common.model_files.tokenizer import find_file
from optimist_gateway.core.error import ApiError
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.security.beside import LONG, beside
from optimist_gateway.security.child_process import (
    ChildDiedError,
    ChildError,
    ChildProcess,
    ChildTimeoutError,
    ChildUnavailableError,
)
from optimist_gateway.structure.check_child import MAX_SECONDS

MAX_CHECKED = 1024
"""Grammars and schemas whose verdict is remembered."""
_MAX_CHARACTERS = 64 * 1024
"""Of a verdict that is remembered."""
_LOADER = "optimist_gateway.structure.check_child:load_checker"
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
