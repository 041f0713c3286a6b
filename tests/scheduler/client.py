"""A gateway's side of a stream to the scheduler."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes, to_bytes
from tests.scheduler.fake_worker import expected_output

Command = scheduler_pb2.ConnectRequest
KEEP = scheduler_pb2.PAUSE_MODE_KEEP
PROMPT = [3, 1, 4, 1, 5]
VOCAB_SIZE = 50


def truth(prompt: list[int], max_tokens: int = 20) -> list[int]:
    return expected_output(prompt, VOCAB_SIZE, len(prompt) + max_tokens, set())


def add(handle: int, prompt: list[int], **values: Any) -> Command:
    predicted = values.pop("predicted", [])
    values = {"max_tokens": 20, "request_id": f"r{handle}", **values}
    return Command(
        command_id=handle,
        add=scheduler_pb2.Add(
            handle=handle,
            prompt_token_ids=to_bytes(prompt),
            predicted_token_ids=to_bytes(predicted),
            **values,
        ),
    )


def predict(handle: int = 1, prompt: Sequence[int] = PROMPT, max_tokens: int = 20) -> Command:
    """Adds a request whose prediction is right."""
    predicted = truth(list(prompt), max_tokens)
    return add(handle, list(prompt), predicted=predicted, max_tokens=max_tokens)


def abort(handle: int, **values: Any) -> Command:
    command = scheduler_pb2.Abort(handle=handle, **values)
    return Command(command_id=1000 + handle, abort=command)


def pause(mode: int, command_id: int = 500) -> Command:
    value = scheduler_pb2.PauseMode.ValueType(mode)
    return Command(command_id=command_id, pause=scheduler_pb2.Pause(mode=value))


def resume(command_id: int = 600) -> Command:
    return Command(command_id=command_id, resume=scheduler_pb2.Resume())


def get_stats(command_id: int = 3000) -> Command:
    return Command(command_id=command_id, get_stats=scheduler_pb2.GetStats())


class Client:
    """Collects what a stream says."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self._call = stub.Connect()
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, scheduler_pb2.Finished] = {}
        self.replies: dict[int, scheduler_pb2.Reply] = {}
        self.priorities: list[scheduler_pb2.SetPriority] = []

    async def send(self, *commands: Command) -> None:
        for command in commands:
            await self._call.write(command)

    async def read_to_the_end(self) -> None:
        """Sends nothing more, and reads all that comes."""
        await self._call.done_writing()
        while await self.read():
            pass

    async def read(self) -> bool:
        """Reads one response; returns whether there was one."""
        response = await asyncio.wait_for(self._call.read(), 20)
        if not isinstance(response, scheduler_pb2.ConnectResponse):
            return False
        tokens = iter(from_bytes(response.token_ids).tolist())
        counts = from_bytes(response.num_tokens).tolist()
        for handle, count in zip(from_bytes(response.handles).tolist(), counts, strict=True):
            assert handle not in self.finished
            self.tokens.setdefault(handle, []).extend(next(tokens) for _ in range(count))
        assert next(tokens, None) is None
        for finished in response.finished:
            assert finished.handle not in self.finished
            self.finished[finished.handle] = finished
        self.priorities += response.priorities
        for reply in response.replies:
            assert reply.command_id not in self.replies
            self.replies[reply.command_id] = reply
        return True

    async def read_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert await self.read()

    async def until_finished(self, number: int) -> None:
        """Reads until so many requests have ended."""
        await self.read_until(lambda: len(self.finished) == number)

    async def reply(self, command: Command) -> scheduler_pb2.Reply:
        """Sends a command and waits for its reply."""
        assert command.command_id not in self.replies
        await self.send(command)
        await self.read_until(lambda: command.command_id in self.replies)
        return self.replies[command.command_id]

    async def ask(self, *commands: Command) -> None:
        """Adds requests and waits for their ends."""
        number = len(self.finished) + len(commands)
        await self.send(*commands)
        await self.until_finished(number)

    def close(self) -> None:
        self._call.cancel()


async def ask(stub: Any, *commands: Command) -> Client:
    """Adds requests on a stream of their own and waits for their ends."""
    client = Client(stub)
    await client.ask(*commands)
    client.close()
    return client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


MODES = {
    "nothing ahead": {"max_plans_in_flight": 1, "enable_optimistic_scheduling": False},
    "three plans and the prefix cache": {"max_plans_in_flight": 3, "enable_prefix_caching": True},
    "two stages": {"num_pipeline_stages": 2},
}
"""Settings under which the same things must come out."""
PATIENT: dict[str, Any] = {"proposer_wait_ms": 2000}
"""For those who count what predictions save."""
