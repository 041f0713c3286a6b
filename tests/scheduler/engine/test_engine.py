"""The whole scheduler over real sockets, with a fake worker."""

import asyncio
from typing import Any

import grpc
import pytest

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import from_bytes
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.gateways import delivery as gateway_delivery
from optimist_scheduler.service.servicer import SchedulerServicer
from optimist_scheduler.settings import SchedulerSettings
from tests.scheduler.client import MODES, PROMPT, Client, add, ask, truth, until
from tests.scheduler.fake_services import FakeWorkerServicer, check_integrity, serve_scheduler


@pytest.mark.parametrize("mode", MODES)
async def test_streams_get_their_own_requests_to_their_end_or_that_of_the_stream(
    mode: str, worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.step_seconds = 0.002
    # A row that fails ends alone.
    worker.worker.failing = {"1-2"}
    async with serve_scheduler(worker_port, [], **MODES[mode]) as (engine, stub):
        leaving = Client(stub)
        await leaving.send(*(add(handle, [handle + 1], max_tokens=50) for handle in range(3)))
        await leaving.read_until(lambda: len(leaving.tokens) > 0)
        asking = [
            ask(stub, *(add(row, [row, end], request_id=f"{end}-{row}") for row in range(4)))
            for end in range(2)
        ]
        answers = asyncio.gather(*asking)
        await until(lambda: engine.scheduler.num_running + engine.scheduler.num_waiting > 4)
        leaving.close()
        clients = await answers
        await until(lambda: engine.scheduler.num_free_blocks == 32)
        check_integrity(engine)
    for end, client in enumerate(clients):
        failed = [2] if end == 1 else []
        assert client.tokens == {row: truth([row, end]) for row in range(4) if row not in failed}
        for row, finished in client.finished.items():
            if row in failed:
                assert finished.reason == scheduler_pb2.FINISH_REASON_ERROR
                assert finished.message == "1-2 fails"
            else:
                assert finished.reason == scheduler_pb2.FINISH_REASON_LENGTH
                assert finished.num_passes == 20


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_as_many_plans_as_may_be_are_at_the_worker(
    depth: int, worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.may_run.clear()
    async with serve_scheduler(worker_port, [], max_plans_in_flight=depth) as (engine, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT))
        await until(lambda: worker.num_plans == depth)
        assert engine.scheduler.num_plans_in_flight == depth
        worker.may_run.set()
        await client.read_until(lambda: 1 in client.finished)
    assert client.tokens == {1: truth(PROMPT)}
    assert worker.max_num_plans == depth


async def test_the_next_plan_goes_before_the_outputs(worker_port: int) -> None:
    async with serve_scheduler(worker_port, []) as (engine, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT))
        while 1 not in client.finished:
            num_tokens = len(client.tokens.get(1, []))
            if num_tokens < 20:
                assert engine.scheduler.stats.num_plans > num_tokens - 1
            await client.read()
            num_tokens = len(client.tokens.get(1, []))
            if 0 < num_tokens < 20:
                assert engine.scheduler.stats.num_plans > num_tokens


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_worker_repeats_plans_while_no_newer_one_comes(
    depth: int, worker: FakeWorkerServicer, worker_port: int
) -> None:
    modes: dict[str, Any] = {"multi_step_count": 64, "max_plans_in_flight": depth}
    async with serve_scheduler(worker_port, [], **modes) as (engine, stub):
        client = await ask(stub, add(1, PROMPT, max_tokens=50))
        await until(lambda: engine.scheduler.num_plans_in_flight == 0)
        stats = engine.scheduler.stats
        assert stats.num_plans + worker.num_repeats == worker.worker.num_steps
        assert client.tokens == {1: truth(PROMPT, 50)}
        # The last runs may have been of no use; their results are on their way still.
        await until(lambda: stats.num_repeats + stats.num_late_results == worker.num_repeats)
    assert worker.num_repeats > 0


async def test_describe_reports_model_and_limits(worker_port: int) -> None:
    async with serve_scheduler(worker_port, []) as (_, stub):
        response = await stub.Describe(scheduler_pb2.DescribeRequest())
    assert (response.model, response.vocab_size, response.max_model_len) == ("fake", 50, 64)
    assert response.kv_capacity_tokens == 32 * 4
    assert from_bytes(response.eos_token_ids).tolist() == [2]


async def test_a_stream_that_is_not_read_ends_with_an_error(
    worker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_delivery, "MAX_WAITING_RESPONSES", 0)
    async with serve_scheduler(worker_port, []) as (engine, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert engine.scheduler.num_running + engine.scheduler.num_waiting == 0


async def test_nothing_is_served_before_the_worker_is_reached() -> None:
    settings = SchedulerSettings(workers=["127.0.0.1:1"], proposers=[])
    fleet = Fleet(settings)
    server = GrpcServer("127.0.0.1", 0)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
        SchedulerServicer(fleet), server.server
    )
    port = await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Describe(scheduler_pb2.DescribeRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Connect().read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.server.stop(0)


async def test_a_stream_without_further_commands_ends_with_its_last_request(
    worker_port: int,
) -> None:
    async with serve_scheduler(worker_port, []) as (_, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT), add(2, [8]))
        await client.done_sending()
        while await client.read():
            pass
    assert client.tokens == {1: truth(PROMPT), 2: truth([8])}


async def test_a_starved_request_goes_first_and_the_log_says_so(
    worker: FakeWorkerServicer, worker_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"policy": "priority", "max_num_seqs": 1}
    worker.step_seconds = 0.01
    async with serve_scheduler(worker_port, [], starvation_seconds=0.05, **options) as (_, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT, priority=5))
        await client.send(*(add(handle, [handle], priority=0) for handle in range(2, 8)))
        await client.until_finished(7)
    ends = list(client.finished)
    assert ends.index(1) < len(ends) - 1
    assert "go first now: later ones had overtaken them for more than 0.05 seconds" in caplog.text
