"""The whole scheduler over real sockets, with a fake worker."""

import asyncio
from typing import Any

import grpc
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.scheduler_service import stream as gateway_stream
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.settings import SchedulerSettings
from tests.scheduler.client import MODES, PROMPT, add, ask, truth, until
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeWorkerServicer, serve, serve_worker
from tests.scheduler.fake_worker import FakeWorker
from tests.scheduler.integrity import check_integrity


@pytest.mark.parametrize("mode", MODES)
async def test_streams_get_their_own_requests_to_their_end_or_that_of_the_stream(
    start: Start, mode: str, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.002
    # A row that fails ends alone.
    worker.worker.failing = {"1-2"}
    engine, leaving = await start(**MODES[mode])
    await leaving.send(*(add(handle, [handle + 1], max_tokens=50) for handle in range(3)))
    await leaving.read_until(lambda: len(leaving.tokens) > 0)
    asking = [
        ask(leaving.stub, *(add(row, [row, end], request_id=f"{end}-{row}") for row in range(4)))
        for end in range(2)
    ]
    answers = asyncio.gather(*asking)
    await until(lambda: engine.scheduler.num_running + engine.scheduler.num_waiting > 4)
    leaving.close()
    clients = await answers
    await until(lambda: engine.scheduler.num_free_blocks == 32)
    check_integrity(engine.scheduler)
    for end, client in enumerate(clients):
        if end == 1:
            failed = client.finished.pop(2)
            assert failed.reason == scheduler_pb2.FINISH_REASON_ERROR
            assert failed.message == "1-2 fails"
        assert client.tokens == {row: truth([row, end]) for row in client.finished}
        assert len(client.tokens) == 4 - end
        for finished in client.finished.values():
            assert finished.reason == scheduler_pb2.FINISH_REASON_LENGTH
            assert finished.num_passes == 20


async def test_a_stream_without_further_commands_ends_with_its_last_request(start: Start) -> None:
    _, client = await start()
    await client.send(add(1, PROMPT), add(2, [8]))
    await client.read_to_the_end()
    assert client.tokens == {1: truth(PROMPT), 2: truth([8])}


async def test_a_stream_that_is_not_read_ends_with_an_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_stream, "MAX_WAITING_RESPONSES", 0)
    engine, client = await start()
    await client.send(add(1, PROMPT))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert engine.scheduler.num_running + engine.scheduler.num_waiting == 0


async def test_nothing_is_served_before_the_worker_is_reached() -> None:
    fleet = Fleet(SchedulerSettings(workers=["127.0.0.1:1"], proposers=[]))
    async with serve(fleet) as stub:
        for call in (stub.Describe(scheduler_pb2.DescribeRequest()), stub.Connect().read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_starved_request_goes_first_and_the_log_says_so(
    start: Start, worker: FakeWorkerServicer, caplog: pytest.LogCaptureFixture
) -> None:
    worker.step_seconds = 0.01
    _, client = await start(starvation_seconds=0.05, policy="priority", max_num_seqs=1)
    await client.send(add(1, PROMPT, priority=5))
    await client.send(*(add(handle, [handle], priority=0) for handle in range(2, 8)))
    await client.until_finished(7)
    ends = list(client.finished)
    assert ends.index(1) < len(ends) - 1
    assert "go first now: later ones had overtaken them for more than 0.05 seconds" in caplog.text


# A worker that breaks, goes away or fails.

SPOILS: list[dict[str, Any]] = [{"token_ids": b"1"}, {"sequence": 999}, {"slots": b"1234"}]
"""What a result is that fits no plan."""


@pytest.mark.parametrize("mode", MODES)
async def test_a_stream_that_breaks_or_brings_what_fits_no_plan_is_a_pause(
    start: Start, mode: str, worker: FakeWorkerServicer
) -> None:
    prompts = {handle: [handle, 7, handle] for handle in range(6)}
    engine, first = await start(**MODES[mode])
    for spoil in SPOILS:
        # Of a third loss a request that always was at work might be taken for the reason.
        num_steps, num_streams = worker.worker.num_steps, worker.num_streams
        worker.break_at, worker.spoil_at = {num_steps + 5}, {num_steps + 14}
        worker.spoil = spoil
        client = await ask(first.stub, *(add(handle, prompt) for handle, prompt in prompts.items()))
        assert client.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
        assert worker.num_streams == max(num_streams, 1) + 2
    check_integrity(engine.scheduler)


async def test_a_worker_that_is_lost_with_all_its_plans_is_found_again(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    smaller = FakeWorkerServicer(FakeWorker(num_blocks=10, max_num_seqs=1, eos_token_ids=(2,)))
    engine, client = await start(max_plans_in_flight=3)
    await client.send(add(1, PROMPT))
    await client.read_until(lambda: 1 in client.tokens)
    worker.may_run.clear()
    await until(lambda: worker.num_plans == 3)
    await worker.stop()
    async with serve_worker(smaller, worker.port):
        await client.until_finished(1)
        check_integrity(engine.scheduler)
        assert client.tokens[1] == truth(PROMPT)
        assert smaller.num_streams == 1
