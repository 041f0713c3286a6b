"""Starts services in order, waits until all are healthy, restarts what dies, ends in reverse."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from optimist_cli.serve.process import ServiceProcess, ServiceSpec
from optimist_common.errors import SetupError

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0
RESTART_PAUSE_SECONDS = 0.5
# A service that dies more often in a row, never healthy for long, will not recover by itself.
MAX_RESTARTS = 5
HEALTHY_SECONDS = 12.0


class Deaths:
    """How often a service died in a row, however long it took to start each time."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def count(self, healthy_seconds: float) -> None:
        """Counts a death.

        Args:
            healthy_seconds: How long the service had been healthy; 0 if it never was.
        """
        self.in_a_row = 1 if healthy_seconds >= HEALTHY_SECONDS else self.in_a_row + 1

    @property
    def are_too_many(self) -> bool:
        """Whether it should not be started again."""
        return self.in_a_row > MAX_RESTARTS


class Supervisor:
    """Keeps a list of services running until it is stopped or one of them cannot run."""

    def __init__(
        self, specs: Sequence[ServiceSpec], write_line: Callable[[str, str], None]
    ) -> None:
        self._specs = specs
        self._write_line = write_line
        self._processes: dict[int, ServiceProcess] = {}
        """By index of the spec: several services may have the same name."""

    async def start(self) -> None:
        """Starts every service and returns when all are healthy.

        Raises:
            SetupError: A service ended or did not become healthy in time.
        """
        for index in range(len(self._specs)):
            await self._start_one(index)
        waits = [
            asyncio.create_task(self._require_healthy(index)) for index in range(len(self._specs))
        ]
        waits.append(asyncio.create_task(self._in_time(list(waits))))
        # One that ends is not kept from saying why by another that takes minutes to load.
        await _gather(waits)

    async def watch(self) -> None:
        """Restarts services that die; returns never.

        Raises:
            SetupError: A service keeps dying.
        """
        watchers = [
            asyncio.create_task(self._watch_one(index)) for index in range(len(self._specs))
        ]
        await _gather(watchers)

    async def stop(self) -> None:
        """Ends the services, the last started first."""
        async with AsyncExitStack() as stack:
            # It calls the last one first, and the others also if that fails.
            for index in sorted(self._processes):
                stack.push_async_callback(self._processes[index].stop, GRACE_SECONDS)

    async def _start_one(self, index: int) -> None:
        process = ServiceProcess(self._specs[index], self._write_line)
        await process.start()
        self._processes[index] = process

    async def _in_time(self, waits: "Sequence[asyncio.Task[None]]") -> None:
        """Waits for each service in turn, for as long as it may take after the one before it."""
        for spec, wait in zip(self._specs, waits, strict=True):
            try:
                async with asyncio.timeout(spec.start_seconds):
                    await asyncio.shield(wait)
            except TimeoutError:
                raise SetupError(
                    f"{spec.name} was not healthy after {spec.start_seconds:.0f} s; "
                    "its log says why"
                ) from None

    async def _require_healthy(self, index: int) -> None:
        process, name = self._processes[index], self._specs[index].name
        begin = time.monotonic()
        if await self._becomes_healthy(index):
            process.say(f"ready after {time.monotonic() - begin:.1f} s")
            return
        # What a service says of itself explains more than what its log ends with.
        lines = list(process.last_lines) or ["it printed nothing"]
        reasons = [line for line in lines if line.startswith(f"optimist {name}: ")]
        raise SetupError(f"{name} could not start: {(reasons or lines)[-1]}")

    async def _becomes_healthy(self, index: int) -> bool:
        """Waits until a service is healthy or ends; returns whether it is healthy."""
        process = self._processes[index]
        ended = asyncio.create_task(process.exit_code())
        try:
            while not ended.done():
                if await asyncio.to_thread(process.spec.is_healthy):
                    return True
                await asyncio.wait([ended], timeout=POLL_SECONDS)
        finally:
            ended.cancel()
        return False

    async def _watch_one(self, index: int) -> None:
        deaths = Deaths()
        while True:
            healthy_seconds = 0.0
            if await self._becomes_healthy(index):
                healthy_at = time.monotonic()
                await self._processes[index].exit_code()
                healthy_seconds = time.monotonic() - healthy_at
            code = await self._processes[index].exit_code()
            deaths.count(healthy_seconds)
            if deaths.are_too_many:
                raise SetupError(
                    f"{self._specs[index].name} died {deaths.in_a_row} times in a row; "
                    "its log says why"
                )
            self._processes[index].say(f"ended with exit code {code}; starting it again")
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
            await self._start_one(index)


async def _gather(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Waits for tasks to end; if one fails, ends the others and raises its error."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
