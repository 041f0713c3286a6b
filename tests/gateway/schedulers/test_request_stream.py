"""Outputs that are handed to a reader in the moment in which they arrive."""

import asyncio

import pytest

from optimist_gateway.core.answer.output import Finished, FinishReason, StepOutput
from optimist_gateway.schedulers.requests import (
    MAX_WAITING_OUTPUTS,
    RequestStream,
    SchedulerUnavailableError,
    SlowReaderError,
)

ENDED = Finished(FinishReason.LENGTH)


class Reader:
    """Notes what it gets; pauses the stream after each output if that is wanted."""

    def __init__(self, stream: RequestStream, *, pauses: bool = False) -> None:
        self.stream, self.pauses = stream, pauses
        self.got: list[int | type[Exception]] = []

    def __call__(self, item: StepOutput | Exception) -> None:
        self.got += item.token_ids if isinstance(item, StepOutput) else [type(item)]
        if self.pauses and isinstance(item, StepOutput):
            self.stream.pause()


class Aborts:
    """Notes how a request was ended."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def __call__(self, *, wants_finished: bool = False) -> None:
        self.calls.append(wants_finished)


@pytest.fixture
def aborts() -> Aborts:
    return Aborts()


@pytest.fixture
async def stream(aborts: Aborts) -> RequestStream:
    return RequestStream(aborts)


async def test_what_waits_comes_first_and_then_all_in_order(stream: RequestStream) -> None:
    reader = Reader(stream)
    stream.deliver(StepOutput([1]))
    stream.read(reader)
    stream.deliver(StepOutput([2]))
    stream.pause()
    stream.deliver(StepOutput([3]))
    assert reader.got == [1, 2]
    stream.resume()
    stream.deliver(StepOutput([4], finished=ENDED))
    assert reader.got == [1, 2, 3, 4]


async def test_a_reader_that_has_enough_stops_what_waits(stream: RequestStream) -> None:
    reader = Reader(stream, pauses=True)
    for number in range(3):
        stream.deliver(StepOutput([number]))
    stream.read(reader)
    assert reader.got == [0]
    stream.fail(SchedulerUnavailableError("gone"))
    stream.resume()
    stream.resume()
    assert reader.got == [0, 1, 2]
    stream.resume()
    assert reader.got == [0, 1, 2, SchedulerUnavailableError]


async def test_what_waits_for_a_reader_is_bounded(stream: RequestStream, aborts: Aborts) -> None:
    reader = Reader(stream)
    stream.read(reader)
    stream.pause()
    for number in range(MAX_WAITING_OUTPUTS + 1):
        stream.deliver(StepOutput([number]))
    assert aborts.calls == [False]
    stream.resume()
    assert reader.got == [*range(MAX_WAITING_OUTPUTS), SlowReaderError]


async def test_nothing_comes_after_the_end(stream: RequestStream, aborts: Aborts) -> None:
    reader = Reader(stream)
    stream.read(reader)
    stream.pause()
    stream.deliver(StepOutput([1]))
    stream.close()
    stream.close()
    stream.deliver(StepOutput([2]))
    stream.resume()
    assert reader.got == []
    assert aborts.calls == [False]


@pytest.mark.parametrize("comes_first", [False, True])
async def test_the_account_is_read_and_nothing_else(
    stream: RequestStream, aborts: Aborts, comes_first: bool
) -> None:
    reader = Reader(stream)
    stream.read(reader)
    stream.pause()
    if comes_first:
        stream.deliver(StepOutput([1], finished=ENDED))
    account = stream.finish()
    if not comes_first:
        assert aborts.calls == [True]
        stream.deliver(StepOutput([1]))
        stream.deliver(StepOutput([2], finished=ENDED))
    assert await asyncio.wait_for(account, 5) is ENDED
    assert reader.got == []


async def test_there_is_no_account_of_a_request_that_is_closed(stream: RequestStream) -> None:
    account = stream.finish()
    stream.close()
    assert await asyncio.wait_for(account, 5) is None
