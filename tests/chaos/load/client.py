"""A client as users have them: it comes back when it is refused, and has a deadline."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import httpx

from optimist_client import OptimistError
from tests.chaos.load.answer import Answer, Failure
from tests.chaos.load.case import Case
from tests.chaos.load.grpc_call import generate

_REFUSALS = (429, 503)
SHUTTING_DOWN = "shutting_down"
# Without a connection there is no Retry-After.
_RECONNECT_SECONDS = 0.25


class Ending(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    FAILED = "failed"
    """With the error that is the right answer."""
    LEFT = "left"
    """The client went away on purpose."""
    LATE = "late"
    """The deadline came first."""
    LOST = "lost"
    """An error, or a connection that broke although its gateway was well."""


@dataclass
class Outcome:
    """What became of a request."""

    case: Case
    began: float
    """Of the event loop's clock, as the other times."""
    ended: float = 0.0
    ending: Ending = Ending.LOST
    answer: Answer = field(default_factory=Answer)
    """The last one, as far as it came."""
    times: list[float] = field(default_factory=list)
    """When chunks with tokens came."""
    num_refused: int = 0
    """Answers 429 or 503 that were followed."""
    num_broken: int = 0
    """Times that a harmed gateway took the answer with it, or was not there."""
    message: str = ""
    """Why it was lost."""


class LostError(Exception):
    """The answer is an error, or breaks off."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        """Says what went wrong, with what the server said if it said so."""
        super().__init__(message)
        self.failure = failure


class _RefusedError(Exception):
    """Come back after so many seconds."""


class Client:
    """Asks gateways in turn, on a connection for each try."""

    def __init__(
        self,
        gateways: Sequence[str] | Mapping[str, str],
        deadline_seconds: float,
        may_break: Callable[[str, float], bool] = lambda url, since: False,
        seed: int = 0,
        on_chunk: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """Connects to nobody yet.

        Args:
            gateways: Their URLs, by which may be where they speak gRPC, for cases that need it.
            deadline_seconds: From a request's beginning, all its tries included.
            may_break: Whether a gateway, by its URL, was harmed since a time.
            seed: Of the choice of gateways.
            on_chunk: Called after each chunk with tokens.
        """
        self._grpc_addresses = gateways if isinstance(gateways, Mapping) else {}
        self._urls, self._deadline_seconds = list(gateways), deadline_seconds
        self._may_break, self._rng = may_break, random.Random(f"client {seed}")
        self._on_chunk = on_chunk
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)

    async def __aenter__(self) -> Self:
        """Asks while it is open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends what is left of it."""
        await self._http.aclose()

    async def ask(self, case: Case, leave_seconds: float | None = None) -> Outcome:
        """Asks until there is an answer; leaves after `leave_seconds`, if they are given."""
        loop = asyncio.get_running_loop()
        outcome = Outcome(case, loop.time())
        seconds = self._deadline_seconds if leave_seconds is None else leave_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._ask_until_answered(outcome)
            outcome.ending = Ending.ANSWERED
        except TimeoutError:
            outcome.ending = Ending.LATE if leave_seconds is None else Ending.LEFT
        except LostError as error:
            outcome.message, outcome.answer.failure = str(error), error.failure
            if error.failure and case.failure and case.failure in error.failure.message:
                outcome.ending = Ending.FAILED
        outcome.ended = loop.time()
        return outcome

    async def _ask_until_answered(self, outcome: Outcome) -> None:
        loop = asyncio.get_running_loop()
        while True:
            url, began = self._rng.choice(self._urls), loop.time()
            outcome.answer = Answer()
            try:
                await self._try_once(url, outcome)
                return
            except _RefusedError as refused:
                outcome.num_refused += 1
                await asyncio.sleep(refused.args[0] * self._rng.uniform(1.0, 1.2))
            except httpx.TransportError as error:
                if not self._may_break(url, began):
                    raise LostError(f"{type(error).__name__}: {error}") from None
                outcome.num_broken += 1
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _try_once(self, url: str, outcome: Outcome) -> None:
        if outcome.case.protocol == "grpc":
            await self._try_grpc(self._grpc_addresses[url], outcome)
        else:
            await self._try_http(url, outcome)

    async def _try_grpc(self, address: str, outcome: Outcome) -> None:
        loop = asyncio.get_running_loop()

        def take_time() -> None:
            outcome.times.append(loop.time())
            self._on_chunk(outcome)

        try:
            await generate(address, outcome.case.body, outcome.answer, take_time)
        except OptimistError as error:
            is_said_by_server = error.code != error.status.lower()
            if not is_said_by_server or error.code == SHUTTING_DOWN:
                raise httpx.RemoteProtocolError(str(error)) from None
            if error.retry_after is not None and not outcome.answer.choices:
                raise _RefusedError(error.retry_after) from None
            raise LostError(str(error), Failure(error.code, error.message)) from None

    async def _try_http(self, url: str, outcome: Outcome) -> None:
        case, loop = outcome.case, asyncio.get_running_loop()
        async with self._http.stream("POST", url + case.path, json=case.body) as response:
            if response.status_code in _REFUSALS:
                raise _RefusedError(float(response.headers["retry-after"]))
            if response.status_code != 200:
                text = (await response.aread()).decode()
                failure = _failure(json.loads(text)["error"])
                raise LostError(f"{response.status_code}: {text}", failure)
            if not case.is_streamed:
                outcome.answer.take(json.loads(await response.aread()))
                return
            is_done = False
            async for line in response.aiter_lines():
                if is_done and line:
                    raise LostError(f"after the end comes {line[:200]}")
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: ") and outcome.answer.take(_chunk(line)):
                    outcome.times.append(loop.time())
                    self._on_chunk(outcome)
            if not is_done:
                raise LostError("the stream ended without its end")


def _chunk(line: str) -> dict[str, Any]:
    """Returns a chunk; raises for the error that ends a stream."""
    chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
    if (error := chunk.get("error")) is None:
        return chunk
    if error.get("code") == SHUTTING_DOWN:
        # Its grace is over: another gateway, or this one when it is back, is to be asked.
        raise httpx.RemoteProtocolError("the gateway shuts down")
    raise LostError(f"error in the stream: {error}", _failure(error))


def _failure(error: dict[str, Any]) -> Failure:
    return Failure(str(error.get("code")), error["message"])
