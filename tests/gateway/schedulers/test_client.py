"""What happens when the scheduler is slow, gone, or back."""

import asyncio
import gc

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import (
    MAX_WAITING_OUTPUTS,
    SchedulerUnavailableError,
    SlowReaderError,
)
from tests.gateway.conftest import until, until_healthy
from tests.gateway.fake_scheduler import (
    EOS,
    USER,
    FakeScheduler,
    Say,
    Script,
    Step,
    start_scheduler,
)
from tests.gateway.schedulers.reading import Reading


async def connect(client: SchedulerPool) -> asyncio.Task[None]:
    task = asyncio.create_task(client.run())
    await until(lambda: is_connected(client))
    return task


def is_connected(client: SchedulerPool) -> bool:
    try:
        return client.description.vocab_size > 0
    except SchedulerUnavailableError:
        return False


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def add() -> scheduler_pb2.Add:
    return scheduler_pb2.Add(request_id="one", max_tokens=5)


async def test_requests_share_a_stream_and_get_their_own_outputs(scheduler: FakeScheduler) -> None:
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    assert client.description.eos_token_ids == (EOS,)
    streams = []
    for number in range(5):
        scheduler.script = Script([Step([number], 1), Step([number + 10, EOS])], accepted=1)
        streams.append(Reading(client.add(add())))
        await until(lambda: len(scheduler.adds) == len(streams))
    for number, stream in enumerate(streams):
        first, last = [output async for output in stream]
        assert (first.token_ids, first.num_accepted_tokens, first.finished) == ([number], 1, None)
        assert last.token_ids == [number + 10, EOS]
        assert last.finished is not None
        assert last.finished.accepted_prediction_tokens == 1
        stream.close()
    assert scheduler.aborts.empty()
    await stop(task)


async def test_closing_a_stream_ends_its_reader_and_the_request(scheduler: FakeScheduler) -> None:
    scheduler.script = Script(hang=True)
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    stream = Reading(client.add(add()))
    reading = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    stream.close()
    stream.close()
    assert await reading is None
    assert await scheduler.aborts.get() == scheduler.adds[0].handle
    assert scheduler.aborts.empty()
    await stop(task)


async def test_the_account_of_a_request_is_had_by_ending_it(scheduler: FakeScheduler) -> None:
    scheduler.script = Script([Step([7])], forever=True, rejected=4)
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    stream = Reading(client.add(add()))
    assert (await anext(stream)).token_ids == [7]
    finished = await stream.finish()
    assert finished is not None
    assert (finished.reason, finished.rejected_prediction_tokens) == (FinishReason.ABORTED, 4)
    stream.close()
    assert await scheduler.aborts.get() == scheduler.adds[0].handle
    assert scheduler.aborts.empty()
    await stop(task)


async def test_an_answer_goes_out_without_its_account_if_the_scheduler_is_lost(
    scheduler: FakeScheduler,
) -> None:
    scheduler.script = Script([Step([7])], break_stream=True)
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    stream = Reading(client.add(add()))
    assert (await anext(stream)).token_ids == [7]
    assert await stream.finish() is None
    await stop(task)


async def test_outputs_that_nobody_reads_are_bounded(scheduler: FakeScheduler) -> None:
    scheduler.script = Script([Step([7])], forever=True)
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    stream = Reading(client.add(add()))
    assert await scheduler.aborts.get() == scheduler.adds[0].handle
    for _ in range(MAX_WAITING_OUTPUTS):
        assert (await anext(stream)).token_ids == [7]
    with pytest.raises(SlowReaderError):
        await anext(stream)
    await stop(task)


@pytest.mark.parametrize(
    "response",
    [
        scheduler_pb2.ConnectResponse(handles=b"\1\0\0\0"),
        scheduler_pb2.ConnectResponse(handles=b"\1\0"),
        scheduler_pb2.ConnectResponse(num_tokens=b"\1\0\0\0"),
    ],
)
async def test_what_is_not_in_the_contract_ends_the_requests_and_not_the_client(
    scheduler: FakeScheduler, response: scheduler_pb2.ConnectResponse
) -> None:
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    scheduler.script = Script(raw=response)
    with pytest.raises(SchedulerUnavailableError):
        await anext(Reading(client.add(add())))
    await until(lambda: is_connected(client))
    scheduler.script = Script([Step([EOS])])
    assert (await anext(Reading(client.add(add())))).token_ids == [EOS]
    await stop(task)


async def test_a_scheduler_that_takes_no_commands_is_not_waited_for(
    scheduler: FakeScheduler,
) -> None:
    scheduler.script = Script(hang=True)
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 1, 0)
    task = await connect(client)
    for _ in range(4):
        Reading(client.add(add()))
    with pytest.raises(SchedulerUnavailableError, match="fast enough"):
        Reading(client.add(add()))
    await stop(task)


async def test_an_unreachable_scheduler_is_503_and_found_when_it_comes(
    scheduler: FakeScheduler,
    http_without_scheduler: tuple[httpx.AsyncClient, int],
    say: Say,
) -> None:
    http, port = http_without_scheduler
    health = await http.get("/health")
    assert health.status_code == 503
    assert str(port) in health.json()["reason"]
    body = {"model": "tiny", "messages": USER}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "scheduler_unavailable"
    assert response.headers["retry-after"] == "1"
    assert (await http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
    say("The quick")
    server, _ = await start_scheduler(scheduler, port)
    await until_healthy(http)
    response = await http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "The quick"
    await server.stop()


async def test_a_stream_that_breaks_has_an_error_in_it(
    client: AsyncOpenAI, http: httpx.AsyncClient, say: Say
) -> None:
    say("The quick brown", break_stream=True)
    stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
    text = ""

    async def read() -> None:
        nonlocal text
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""

    with pytest.raises(openai.APIError, match="went away"):
        await read()
    assert text == "The quick brown"
    await until_healthy(http)
    body = {"model": "tiny", "messages": USER}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 503
    await until_healthy(http)
    say("The quick")
    response = await http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "The quick"


async def test_more_requests_than_places_are_to_come_again(
    http: httpx.AsyncClient, scheduler: FakeScheduler, say: Say
) -> None:
    scheduler.script = Script(hang=True)
    body = {"model": "tiny", "messages": USER}
    waiting = [asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(4)]
    await until(lambda: len(scheduler.adds) == 4)
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "overloaded"
    waiting.pop().cancel()
    await scheduler.aborts.get()
    say("The quick")
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_lost_stream_leaves_nothing_behind(
    scheduler: FakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    client = SchedulerPool([f"127.0.0.1:{scheduler.port}"], 8, 0)
    task = await connect(client)
    # The scheduler ends the stream while it waits for commands.
    scheduler.script = Script(raw=scheduler_pb2.ConnectResponse(handles=b"\1\0"))
    with pytest.raises(SchedulerUnavailableError):
        await anext(Reading(client.add(add())))
    await until(lambda: is_connected(client))
    gc.collect()
    await asyncio.sleep(0)
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    await stop(task)
