"""What replicas share of requests, their sources and outputs, and its writing after the answers."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.sources import SourceName, WrongKind, WrongValueError
from optimist_proposer.core.stored_request import (
    OTHER_OPENING,
    REFUSED,
    WRONG,
    LogWrite,
    StoredRequest,
    next_write,
    settle_write,
)
from optimist_proposer.observing import metrics
from optimist_proposer.observing.seldom import SeldomWarnings


class StoreError(Exception):
    """The store cannot be reached; the message says why, in one line."""


class OutputStore(ABC):
    """Sources by name and outputs by request id; all methods raise StoreError.

    A value that is none of ours costs nobody else anything: it is returned as what is wrong.
    """

    @abstractmethod
    async def read(
        self, max_tokens: Mapping[str, int]
    ) -> Mapping[str, StoredRequest | WrongValueError]:
        """Returns what is held of requests of at most so many output tokens, by their ids."""

    @abstractmethod
    def read_sources(
        self, names: Sequence[SourceName], max_bytes: int
    ) -> AsyncIterator[tuple[SourceName, bytes | WrongValueError]]:
        """Yields packed sources that are held, each at most `max_bytes` long."""

    @abstractmethod
    async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
        """Does writes of different requests, their sources included, and drops closed requests.

        Returns:
            The answer to each write: the number of tokens that the store knows then, UNKNOWN,
            OTHER_OPENING, WRONG or REFUSED.
        """


logger = logging.getLogger(__name__)

MAX_BATCH = 1024
# A write and what its answer may be: appended elsewhere, lost, lost and appended elsewhere.
_NUM_ROUNDS = 4
_STOP_SECONDS = 1.0
_WRONG = "its value in the store was no request"


class WriteBehind:
    """Waiting writes by request, one each; a write is taken from the working copy when it is done.

    What cannot be written is dropped and counted: a replica that lacks it is sent it again.
    """

    def __init__(
        self, store: OutputStore, max_waiting: int, on_superseded: Callable[[LiveRequest], None]
    ) -> None:
        """Writes nothing before `run`; beyond `max_waiting` requests the oldest are dropped.

        `on_superseded` takes copies whose requests were opened again elsewhere, or closed.
        """
        self._store, self._max_waiting = store, max_waiting
        self._on_superseded = on_superseded
        self._waiting: dict[str, LiveRequest | None] = {}
        self._is_waiting = asyncio.Event()
        self._warnings = SeldomWarnings(logger)

    def note(self, request: LiveRequest) -> None:
        """Has a request written that was opened or grew."""
        self._put(request.request_id, request)

    def close(self, request_id: str) -> None:
        """Has a request dropped."""
        self._put(request_id, None)

    async def run(self) -> None:
        """Writes for ever."""
        while True:
            await self._is_waiting.wait()
            await self._flush()

    async def stop(self) -> None:
        """Writes what still waits, for a bounded time."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                while self._waiting:
                    await self._flush()
        except TimeoutError:
            metrics.WRITES_DROPPED.inc(len(self._waiting))

    def _put(self, request_id: str, request: LiveRequest | None) -> None:
        self._waiting.pop(request_id, None)
        while len(self._waiting) >= self._max_waiting:
            del self._waiting[next(iter(self._waiting))]
            metrics.WRITES_DROPPED.inc()
        self._waiting[request_id] = request
        self._is_waiting.set()

    async def _flush(self) -> None:
        batch = dict(list(self._waiting.items())[:MAX_BATCH])
        for request_id in batch:
            del self._waiting[request_id]
        if not self._waiting:
            self._is_waiting.clear()
        closed = [request_id for request_id, request in batch.items() if request is None]
        writes = [
            write
            for request in batch.values()
            if request is not None and (write := next_write(request)) is not None
        ]
        try:
            for _ in range(_NUM_ROUNDS):
                if not writes and not closed:
                    return
                writes, closed = await self._write(writes, closed), []
        except StoreError as error:
            metrics.WRITES_DROPPED.inc(len(batch))
            metrics.STORE_ERRORS.inc()
            self._warnings.write("store", "outputs are not shared for now: %s", error)
        except Exception:
            metrics.WRITES_DROPPED.inc(len(batch))
            logger.exception("%d requests could not be written", len(batch))

    async def _write(self, writes: list[LogWrite], closed: list[str]) -> list[LogWrite]:
        """Returns what is to be written next."""
        answers = await self._store.write(writes, closed)
        after: list[LogWrite] = []
        for write, answer in zip(writes, answers, strict=True):
            if answer == WRONG:
                metrics.WRONG_VALUES.labels(WrongKind.FORMAT).inc()
                request_id = write.request.request_id
                self._warnings.write("wrong", "request %s is written again: %s", request_id, _WRONG)
            elif answer == OTHER_OPENING:
                self._on_superseded(write.request)
            elif answer == REFUSED:
                metrics.WRITES_DROPPED.inc()
            if (again := settle_write(write, answer)) is not None:
                after.append(again)
        return after
