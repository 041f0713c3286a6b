"""A pool before fake schedulers, and a reader of a request's outputs that tests take one by one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_common.network.server import GrpcServer
from optimist_gateway.core.answer.output import StepOutput
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import RequestStream
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler
from tests.gateway.harness import until

VOCAB_SIZE = 512
ANSWER = [7, 8, 9, 10, EOS]
SCRIPT = Script([Step([7]), Step([8, 9], 1), Step([10, EOS], 1)])


class Reading:
    """Iterates over a stream; what is not asked for yet waits here."""

    def __init__(self, stream: RequestStream) -> None:
        self.stream = stream
        self.close, self.finish = stream.close, stream.finish
        self._items: asyncio.Queue[StepOutput | Exception] = asyncio.Queue()
        self._has_ended = False
        stream.read(self._items.put_nowait)

    def __aiter__(self) -> "Reading":
        return self

    async def __anext__(self) -> StepOutput:
        """Returns the next output or raises what the stream failed with."""
        if self._has_ended:
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        self._has_ended = item.finished is not None
        return item


class Fleet:
    """Fake schedulers, each with its server, and a pool in front of them."""

    def __init__(self, number: int, resume_seconds: float, max_num_requests: int) -> None:
        self.fakes = [FakeScheduler(VOCAB_SIZE, script=SCRIPT) for _ in range(number)]
        self.servers: list[GrpcServer] = []
        self._limits = max_num_requests, resume_seconds

    async def __aenter__(self) -> "Fleet":
        for fake in self.fakes:
            server, fake.port = await start_scheduler(fake)
            self.servers.append(server)
        addresses = [f"127.0.0.1:{fake.port}" for fake in self.fakes]
        self.pool = SchedulerPool(addresses, *self._limits)
        self._task = asyncio.create_task(self.pool.run())
        await self.until_connected(len(self.fakes))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for server in self.servers:
            await server.server.stop(None)

    @property
    def num_connected(self) -> int:
        return sum(client.description is not None for client in self.pool.clients)

    async def until_connected(self, number: int) -> None:
        await until(lambda: self.num_connected == number)

    async def kill(self, index: int) -> None:
        await self.servers[index].server.stop(None)

    async def restart(self, index: int) -> None:
        fake = self.fakes[index]
        self.servers[index], _ = await start_scheduler(fake, fake.port)

    def read(self, name: str = "one", **fields: Any) -> Reading:
        """Adds a request."""
        return Reading(self.pool.add(add(name, **fields)))

    async def ask(self, name: str, **fields: Any) -> list[int]:
        """Returns the tokens that a request is answered with."""
        return tokens_of(await rest(self.read(name, **fields)))


@asynccontextmanager
async def fleet_of(
    number: int, resume_seconds: float = 20.0, max_num_requests: int = 8
) -> AsyncIterator[Fleet]:
    async with Fleet(number, resume_seconds, max_num_requests) as fleet:
        yield fleet


def add(name: str = "one", prompt: Sequence[int] = (1, 2, 3), **fields: Any) -> scheduler_pb2.Add:
    prompt_token_ids = to_bytes(list(prompt))
    return scheduler_pb2.Add(
        request_id=name, prompt_token_ids=prompt_token_ids, max_tokens=5, **fields
    )


async def rest(stream: Reading) -> list[StepOutput]:
    return [output async for output in stream]


def tokens_of(outputs: Sequence[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def hold_everywhere(fleet: Fleet, after: int, **fields: Any) -> tuple[Reading, int]:
    """Adds a request that hangs after so many responses; returns it and its scheduler's index."""
    for fake in fleet.fakes:
        fake.hold_after = after
    stream = fleet.read(**fields)
    await until(lambda: any(fake.adds for fake in fleet.fakes))
    index = next(i for i, fake in enumerate(fleet.fakes) if len(fake.adds) == 1)
    for other, fake in enumerate(fleet.fakes):
        if other != index:
            fake.hold_after = None
    return stream, index
