"""A scheduler that is slow, gone, or back; outputs that are handed to a reader as they arrive."""

import asyncio
import gc
from asyncio import sleep
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.answer.output import Finished, FinishReason, StepOutput
from optimist_gateway.schedulers.requests import (
    MAX_WAITING_OUTPUTS,
    RequestStream,
    SchedulerUnavailableError,
    SlowReaderError,
)
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler
from tests.gateway.harness import CHAT, USER, Start, error_of, script_of
from tests.gateway.schedulers.fleet import VOCAB_SIZE, fleet_of
from tests.stack import free_port


async def test_an_answer_goes_out_without_its_account_if_the_scheduler_is_lost() -> None:
    async with fleet_of(1, 0) as fleet:
        fleet.fakes[0].script = Script([Step([7])], break_stream=True)
        stream = fleet.read()
        assert (await anext(stream)).token_ids == [7]
        assert await stream.finish() is None


@pytest.mark.parametrize(
    "columns", [{"handles": b"\1\0\0\0"}, {"handles": b"\1\0"}, {"num_tokens": b"\1\0\0\0"}]
)
async def test_what_is_not_in_the_contract_ends_the_requests_and_not_the_client(
    columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet_of(1, 0) as fleet:
        (scheduler,) = fleet.fakes
        # The scheduler ends the stream while it waits for commands.
        scheduler.script = Script(raw=lambda _: scheduler_pb2.ConnectResponse(**columns))
        with pytest.raises(SchedulerUnavailableError):
            await anext(fleet.read())
        await fleet.until_connected(1)
        gc.collect()
        await sleep(0)
        assert [record for record in caplog.records if record.name == "asyncio"] == []
        scheduler.script = Script([Step([EOS])])
        assert (await anext(fleet.read())).token_ids == [EOS]


async def test_a_scheduler_that_takes_no_commands_is_not_waited_for() -> None:
    async with fleet_of(1, 0, max_num_requests=1) as fleet:
        fleet.fakes[0].script = Script(hang=True)
        for _ in range(4):
            fleet.read()
        with pytest.raises(SchedulerUnavailableError, match="fast enough"):
            fleet.read()


async def test_an_unreachable_scheduler_is_503_and_found_when_it_comes(start: Start) -> None:
    port = free_port()
    async with start(waits=False, schedulers=[f"127.0.0.1:{port}"]) as gateway:
        for path, status in (("/live", 200), ("/startup", 503), ("/ready", 503), ("/health", 503)):
            response = await gateway.http.get(path)
            assert response.status_code == status
            assert ("retry-after" in response.headers) is (status == 503)
        assert str(port) in (await gateway.http.get("/health")).json()["reason"]
        for path in (CHAT, "/tokenize"):
            response = await gateway.post(path, messages=USER)
            assert error_of(response, 503)["code"] == "scheduler_unavailable"
            assert response.headers["retry-after"] == "1"
        assert (await gateway.http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        assert (await gateway.http.get("/tokenizer_info")).status_code == 200
        schemas = (await gateway.http.get("/openapi.json")).json()["components"]["schemas"]
        assert "maximum" not in schemas["DetokenizeBody"]["properties"]["tokens"]["items"]
        script = script_of(gateway.backend, "The quick")
        server, _ = await start_scheduler(FakeScheduler(VOCAB_SIZE, script), port)
        await gateway.until_healthy()
        assert (await gateway.chat()).choices[0].message.content == "The quick"
        await server.stop()


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
