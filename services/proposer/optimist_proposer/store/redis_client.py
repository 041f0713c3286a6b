"""Calls of Redis that never take long and never raise anything but StoreError."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    ClusterError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from optimist_common.errors import SetupError, one_line
from optimist_common.settings import without_passwords
from optimist_proposer.observing import metrics
from optimist_proposer.store.redis_url import RedisTarget, open_redis
from optimist_proposer.store.store import StoreError

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0
# A connection may take so many times what an answer may be waited for: nobody waits for it, and a
# process that was busy for a while would else take answers that are there for late ones.
_PATIENCE = 10
# A start waits for Redis no longer: to find a master or the nodes of a cluster takes some calls.
_START_SECONDS = 5.0

Command = tuple[str | bytes | int, ...]

_FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)


def _is_down(answer: object) -> bool:
    """Returns whether an answer says that Redis can do nothing now, not that a command is wrong."""
    if isinstance(answer, ResponseError):
        return isinstance(answer, ReadOnlyError | ClusterError)
    return isinstance(answer, Exception)


class RedisClient:
    """Runs commands in one round trip, and leaves Redis alone for a while when it fails."""

    def __init__(self, url: str, key_prefix: str, timeout_ms: int) -> None:
        """Connects when first used; raises SetupError if `url` is no Redis URL (`open_redis`)."""
        self._url, self._key_prefix, self._seconds = url, key_prefix, timeout_ms / 1000
        try:
            self._target: RedisTarget = open_redis(url, _PATIENCE * self._seconds)
        except (ValueError, RedisClusterException) as error:
            raise SetupError(f"--store: {error}") from None
        self._pause = 0.0
        """Seconds to the next trial of a Redis that failed; 0 while it answers."""
        self._running: set[asyncio.Task[Any]] = set()
        self.failed_at = float("-inf")
        """When Redis failed last, in seconds of `time.monotonic`; it may have been emptied then."""

    @property
    def num_shards(self) -> int:
        """Hash tags over which keys have to be spread."""
        return self._target.num_shards

    async def start(self) -> None:
        """Tries Redis; one that is away is left alone and tried again, as after any failure.

        Raises:
            SetupError: It is there and refuses: the password is wrong, say.
        """
        trial = asyncio.create_task(self._failure())
        self._keep(trial)
        await asyncio.wait({trial}, timeout=_START_SECONDS)
        error = trial.result() if trial.done() else TimeoutError("no answer")
        if error is None:
            return
        place = without_passwords(self._url)
        if isinstance(error, AuthenticationError) or not _is_down(error):
            await self.stop()
            raise SetupError(f"--store: Redis at {place} refuses: {one_line(error)}")
        self._leave_alone(error)
        logger.warning(
            "cannot reach Redis at %s: %s; outputs are shared as soon as it answers",
            place,
            one_line(error),
        )

    async def run(self, commands: Sequence[Command], *, is_urgent: bool) -> list[Any]:
        """Runs commands, all of them even if one fails; returns their answers.

        A command that Redis refuses, for what its key holds, say, is answered with a ResponseError.
        If Redis can do nothing now StoreError is raised, at once while it is left alone.

        Args:
            commands: Names and arguments.
            is_urgent: Whether an answer is of no use later. What takes too long then runs to its
                end all the same: it may be the way to a new master.
        """
        if self._pause:
            raise StoreError("Redis failed a moment ago")
        metrics.REDIS_ROUND_TRIPS.inc()
        task = asyncio.create_task(self._execute(commands))
        self._keep(task)
        await asyncio.wait({task}, timeout=self._seconds if is_urgent else None)
        if not task.done():
            # If this process was what was slow, the answer is there, and read now.
            await asyncio.wait({task}, timeout=self._seconds / _PATIENCE)
        if not task.done():
            raise self._leave_alone(TimeoutError(f"no answer within {self._seconds * 1000:g} ms"))
        try:
            answers = task.result()
        except _FAILURES as error:
            raise self._leave_alone(error) from error
        for answer in filter(_is_down, answers):
            raise self._leave_alone(answer) from answer
        return answers

    async def stop(self) -> None:
        """Closes all connections."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._target.disconnect()

    async def _execute(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._target.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        except _FAILURES:
            await self._target.disconnect()
            raise
        except Exception as error:
            logger.exception("the Redis client failed")
            raise RedisError(f"the client failed: {error!r}") from error
        # A cluster's client reports a lost connection in the answers of its commands; and where
        # only reading is allowed, the master is another one by now.
        if any(map(_is_down, answers)):
            await self._target.disconnect()
        return answers

    def _leave_alone(self, error: Exception) -> StoreError:
        self.failed_at = time.monotonic()
        if not self._pause:
            self._pause = _FIRST_PAUSE_SECONDS
            metrics.BREAKER_OPEN.set(1)
            self._keep(asyncio.create_task(self._try_again()))
        return StoreError(f"Redis: {one_line(error)}")

    async def _try_again(self) -> None:
        """Tries Redis until it answers, with pauses that double; nobody waits meanwhile."""
        while self._pause:
            await asyncio.sleep(self._pause)
            metrics.REDIS_ROUND_TRIPS.inc()
            self.failed_at = time.monotonic()
            if await self._failure() is None:
                self._pause = 0.0
                metrics.BREAKER_OPEN.set(0)
                logger.info("Redis answers; outputs are shared")
            else:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    async def _failure(self) -> Exception | None:
        """Asks every node of Redis something; returns why one does not answer, or None."""
        # A user of Redis may be confined to keys of the prefix, which may hold anything.
        keys = [f"{self._key_prefix}:{{{number}}}" for number in range(self.num_shards)]
        try:
            answers = await self._execute([("EXISTS", key) for key in keys])
        except _FAILURES as error:
            return error
        return next((answer for answer in answers if isinstance(answer, Exception)), None)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._running.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Whoever waited in vain has said so; without this the loop would say it again.
            task.exception()
