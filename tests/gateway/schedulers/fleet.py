"""A pool before fake schedulers, and a reader of a request's outputs that tests take one by one."""

import asyncio
from collections.abc import Sequence
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_common.network.server import GrpcServer
from optimist_gateway.core.answer.output import Finished, StepOutput
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import ScheduledRequest
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler
from tests.gateway.harness import until

VOCAB_SIZE = 512
ANSWER = [7, 8, 9, 10, EOS]
SCRIPT = Script([Step([7]), Step([8, 9], 1), Step([10, EOS], 1)])


class Reading:
    """Reads a stream; what is not asked for yet waits here."""

    def __init__(self, stream: ScheduledRequest) -> None:
        self.close, self.finish = stream.close, stream.finish
        self.outputs: list[StepOutput] = []
        """Those that were asked for."""
        self._items: asyncio.Queue[StepOutput | Exception] = asyncio.Queue()
        stream.read(self._items.put_nowait)

    async def next(self) -> list[int]:
        """Returns the tokens of the next output or raises what the stream failed with."""
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        self.outputs.append(item)
        return list(item.token_ids)

    async def tokens(self) -> list[int]:
        """Reads to the end; returns all tokens."""
        while not (self.outputs and self.outputs[-1].finished):
            await self.next()
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def finished(self) -> Finished:
        """The end, once it was read."""
        finished = self.outputs[-1].finished
        assert finished is not None
        return finished


class Fleet:
    """Fake schedulers, each with its server, and a pool in front of them."""

    def __init__(
        self, number: int, resume_seconds: float = 20.0, max_num_requests: int = 8
    ) -> None:
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

    async def begun(self, after: int = 1, **fields: Any) -> tuple[Reading, int]:
        """Adds a request that hangs after so many responses; returns it and its scheduler's index.

        The responses are read already. The other schedulers hold nothing.
        """
        for fake in self.fakes:
            fake.hold_after = after
        stream = self.read(**fields)
        for _ in range(after):
            await stream.next()
        index = next(i for i, fake in enumerate(self.fakes) if fake.adds)
        for other, fake in enumerate(self.fakes):
            fake.hold_after = after if other == index else None
        return stream, index

    async def until_connected(self, number: int) -> None:
        await until(lambda: self.num_connected == number)

    def play(self, script: Script) -> None:
        """Lets every scheduler answer so."""
        for fake in self.fakes:
            fake.script = script

    async def kill(self, index: int) -> None:
        await self.servers[index].server.stop(None)

    async def restart(self, index: int, **changes: Any) -> None:
        """Starts a scheduler with some attributes changed; kills it, if it runs."""
        fake = self.fakes[index]
        await self.kill(index)
        await self.until_connected(len(self.fakes) - 1)
        for name, value in changes.items():
            setattr(fake, name, value)
        self.servers[index], _ = await start_scheduler(fake, fake.port)

    def read(self, name: str = "one", **fields: Any) -> Reading:
        """Adds a request."""
        return Reading(self.pool.add(add(name, **fields)))

    async def ask(self, name: str, **fields: Any) -> list[int]:
        """Returns the tokens that a request is answered with."""
        return await self.read(name, **fields).tokens()


def add(name: str = "one", prompt: Sequence[int] = (1, 2, 3), **fields: Any) -> scheduler_pb2.Add:
    token_ids = to_bytes(list(prompt))
    return scheduler_pb2.Add(request_id=name, prompt_token_ids=token_ids, max_tokens=5, **fields)
