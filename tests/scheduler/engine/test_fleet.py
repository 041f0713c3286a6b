"""Several workers of one scheduler, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes
from optimist_common.errors import SetupError
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.journal import read_entries
from optimist_scheduler.service.replay import replay
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import WorkerDescription
from optimist_scheduler.workers.link import CheckWorker, WorkerLink
from tests.scheduler.client import MODES, Client, add, ask, truth, until
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_fleet,
    serve_worker,
)
from tests.scheduler.fake_worker import FakeWorker

PROMPTS = {handle: [handle, 7, handle] for handle in range(12)}
ANSWERS = {handle: truth(prompt) for handle, prompt in PROMPTS.items()}


def new_worker(**values: Any) -> FakeWorkerServicer:
    return FakeWorkerServicer(FakeWorker(eos_token_ids=(2,), **values))


@pytest.fixture
async def workers() -> AsyncIterator[list[FakeWorkerServicer]]:
    """Two workers, each with its port as `port`."""
    servicers = [new_worker(), new_worker()]
    async with AsyncExitStack() as stack:
        for servicer in servicers:
            servicer.port = await stack.enter_async_context(serve_worker(servicer))
        yield servicers


def all_ports(workers: Sequence[FakeWorkerServicer]) -> list[int]:
    return [worker.port for worker in workers]


async def all_connected(fleet: Fleet, number: int = 2) -> None:
    await until(lambda: fleet.dispatcher.num_workers == number)


def num_requests(fleet: Fleet) -> int:
    return fleet.dispatcher.num_running + fleet.dispatcher.num_waiting


def check_rest(fleet: Fleet) -> None:
    """All that requests held has been given back."""
    for engine in fleet.engines:
        scheduler = engine.scheduler
        assert isinstance(scheduler, Scheduler)
        scheduler.check_integrity()
        assert scheduler.num_running + scheduler.num_waiting == 0


@pytest.mark.parametrize("mode", MODES)
async def test_requests_are_shared_and_say_the_same(
    mode: str, workers: list[FakeWorkerServicer]
) -> None:
    async with serve_fleet(all_ports(workers), [], **MODES[mode]) as (fleet, stub):
        await all_connected(fleet)
        client = await ask(stub, *(add(handle, prompt) for handle, prompt in PROMPTS.items()))
        check_rest(fleet)
    assert client.tokens == ANSWERS
    for worker in workers:
        assert len(worker.worker.admitted) >= 4


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_lost_worker_had_goes_on_at_the_other(
    mode: str,
    workers: list[FakeWorkerServicer],
    proposer: FakeProposerServicer,
    proposer_port: int,
) -> None:
    workers[0].break_at, workers[1].break_at = {4, 20, 33}, {9, 26}
    async with serve_fleet(
        all_ports(workers), [proposer_port], proposer_wait_ms=2000, **MODES[mode]
    ) as (fleet, stub):
        await all_connected(fleet)
        commands = [
            add(handle, prompt, predicted=truth(prompt)[:handle])
            for handle, prompt in PROMPTS.items()
        ]
        client = await ask(stub, *commands)
        check_rest(fleet)
        stats = await figures(stub)
        assert fleet.dispatcher.num_moved == stats.num_moved_requests > 0
        await until(
            lambda: (
                sorted(proposer.closed) == sorted(proposer.outputs | dict.fromkeys(proposer.closed))
            )
        )
    assert client.tokens == ANSWERS
    for handle, finished in client.finished.items():
        assert finished.reason == scheduler_pb2.FINISH_REASON_LENGTH
        assert sum(from_bytes(finished.num_tokens_by_source).tolist()) == 20, handle
        assert finished.num_passes + finished.accepted_prediction_tokens == 20


async def figures(stub: Any) -> scheduler_pb2.Stats:
    command = scheduler_pb2.ConnectRequest(command_id=999, get_stats=scheduler_pb2.GetStats())
    client = Client(stub)
    reply = await client.reply(command)
    client.close()
    return reply.stats


async def test_figures_are_of_all_workers(workers: list[FakeWorkerServicer]) -> None:
    async with serve_fleet(all_ports(workers), []) as (fleet, stub):
        await all_connected(fleet)
        for worker in workers:
            worker.may_run.clear()
        client = Client(stub)
        await client.send(*(add(handle, prompt) for handle, prompt in PROMPTS.items()))
        await until(lambda: num_requests(fleet) == 12)
        assert [each.scheduler.num_running > 0 for each in fleet.engines] == [True, True]
        stats = await figures(stub)
        assert (stats.num_running + stats.num_waiting, stats.num_workers) == (12, 2)
        assert (stats.num_blocks, stats.num_plans_in_flight >= 2) == (64, True)
        description = await stub.Describe(scheduler_pb2.DescribeRequest())
        assert description.num_workers == 2
        assert description.num_running + description.num_waiting == 12
        for worker in workers:
            worker.may_run.set()
        await client.read_until(lambda: len(client.finished) == len(PROMPTS))
        stats = await figures(stub)
        assert stats.num_plans == sum(engine.scheduler.stats.num_plans for engine in fleet.engines)
        assert stats.num_moved_requests == 0


async def test_a_pause_is_answered_when_all_workers_rest(
    workers: list[FakeWorkerServicer],
) -> None:
    for worker in workers:
        worker.step_seconds = 0.01
    async with serve_fleet(all_ports(workers), []) as (fleet, stub):
        await all_connected(fleet)
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle]) for handle in range(8)))
        await client.read_until(lambda: len(client.tokens) == 8)
        mode = scheduler_pb2.Pause(mode=scheduler_pb2.PAUSE_MODE_KEEP)
        reply = await client.reply(scheduler_pb2.ConnectRequest(command_id=99, pause=mode))
        assert reply.error == ""
        assert [engine.scheduler.num_plans_in_flight for engine in fleet.engines] == [0, 0]
        assert all(engine.scheduler.is_paused for engine in fleet.engines)
        num_delivered = sum(map(len, client.tokens.values()))
        resume = scheduler_pb2.ConnectRequest(command_id=100, resume=scheduler_pb2.Resume())
        await client.send(resume)
        await client.read_until(lambda: len(client.finished) == 8)
        assert num_delivered < 8 * 20
    assert client.tokens == {handle: ANSWERS[handle] for handle in range(8)}


async def test_requests_wait_for_any_worker_when_all_are_lost() -> None:
    first, second = new_worker(), new_worker()
    first.step_seconds = second.step_seconds = 0.005
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        ports = [
            await serving.enter_async_context(serve_worker(first)),
            await serving.enter_async_context(serve_worker(second)),
        ]
        fleet, stub = await stack.enter_async_context(serve_fleet(ports, []))
        await all_connected(fleet)
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle], max_tokens=40) for handle in range(8)))
        await client.read_until(lambda: len(client.tokens) == 8)
        await serving.aclose()
        await all_connected(fleet, 0)
        # Some may have ended meanwhile.
        num_left = num_requests(fleet)
        assert num_left > 0
        await client.send(add(8, PROMPTS[8]))
        await until(lambda: fleet.dispatcher.num_waiting == num_left + 1)
        # Only one comes back, and does it all.
        await stack.enter_async_context(serve_worker(second, ports[1]))
        await client.read_until(lambda: len(client.finished) == 9)
        assert fleet.dispatcher.num_workers == 1
        check_rest(fleet)
    answers = {handle: truth(PROMPTS[handle], 40) for handle in range(8)} | {8: ANSWERS[8]}
    assert client.tokens == answers


async def test_a_worker_of_another_model_is_refused_by_name(
    workers: list[FakeWorkerServicer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    workers[1].worker.description.eos_token_ids = workers[1].worker.description.num_blocks.to_bytes(
        4, "little"
    )
    async with serve_fleet(all_ports(workers), []) as (fleet, stub):
        await until(lambda: "its eos_token_ids is" in caplog.text)
        client = await ask(stub, *(add(handle, prompt) for handle, prompt in PROMPTS.items()))
        assert fleet.dispatcher.num_workers == 1
    assert client.tokens == ANSWERS
    ports = all_ports(workers)
    messages = [
        f"the worker at 127.0.0.1:{one} is not reached: its eos_token_ids is" for one in ports
    ]
    assert sum(message in caplog.text for message in messages) == 1
    assert "as that of the worker at 127.0.0.1:" in caplog.text


async def broken_off(client: Client) -> grpc.StatusCode:
    """Reads to the error that a stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read_until(lambda: False)
    return caught.value.code()


async def test_what_was_begun_with_another_model_ends_and_gateways_ask_again() -> None:
    one, other = new_worker(), new_worker()
    other.worker.description.model = "elsewhere/other"
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        port = await serving.enter_async_context(serve_worker(one))
        fleet, stub = await stack.enter_async_context(serve_fleet([port], []))
        client, idle = Client(stub), Client(stub)
        assert (await idle.reply(scheduler_pb2.ConnectRequest(command_id=5))).error
        one.step_seconds = 0.01
        await client.send(*(add(handle, PROMPTS[handle]) for handle in range(8)))
        await client.read_until(lambda: len(client.tokens) > 0)
        one.may_run.clear()
        await serving.aclose()
        await stack.enter_async_context(serve_worker(other, port))
        for each in (client, idle):
            assert await broken_off(each) is grpc.StatusCode.UNAVAILABLE
        assert len(client.finished) == 8
        for finished in client.finished.values():
            assert finished.reason == scheduler_pb2.FINISH_REASON_ERROR
            assert "its model is other, not fake as that of the one before" in finished.message
        for handle, tokens in client.tokens.items():
            assert tokens == ANSWERS[handle][: len(tokens)]
        description = await stub.Describe(scheduler_pb2.DescribeRequest())
        assert description.model == "elsewhere/other"
        again = await ask(stub, add(1, PROMPTS[1]))
        check_rest(fleet)
    assert again.tokens == {1: ANSWERS[1]}


async def test_workers_of_a_former_model_take_part_again_with_the_new_one() -> None:
    others = [new_worker(), new_worker()]
    for other in others:
        other.worker.description.model = "other"
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        ports = [
            await serving.enter_async_context(serve_worker(new_worker())),
            await serving.enter_async_context(serve_worker(new_worker(max_model_len=128))),
        ]
        fleet, stub = await stack.enter_async_context(serve_fleet(ports, []))
        await all_connected(fleet)
        mode = scheduler_pb2.Pause(mode=scheduler_pb2.PAUSE_MODE_KEEP)
        await Client(stub).reply(scheduler_pb2.ConnectRequest(command_id=1, pause=mode))
        await serving.aclose()
        await all_connected(fleet, 0)
        await serving.enter_async_context(serve_worker(others[0], ports[0]))
        await all_connected(fleet, 1)
        assert fleet.dispatcher.is_paused
        resume = scheduler_pb2.ConnectRequest(command_id=1, resume=scheduler_pb2.Resume())
        await Client(stub).reply(resume)
        # It would wait for the former model's worker, which it fits.
        long = await ask(stub, add(1, [7] * 70))
        assert long.finished[1].reason == scheduler_pb2.FINISH_REASON_REFUSED
        await serving.aclose()
        await all_connected(fleet, 0)
        description = await stub.Describe(scheduler_pb2.DescribeRequest())
        assert (description.model, description.max_model_len) == ("other", 64)
        for other, port in zip(others, ports, strict=True):
            await stack.enter_async_context(serve_worker(other, port))
        await all_connected(fleet)
        client = await ask(stub, *(add(handle, prompt) for handle, prompt in PROMPTS.items()))
        check_rest(fleet)
    assert client.tokens == ANSWERS
    assert all(other.worker.admitted for other in others)


async def test_what_fits_only_a_lost_worker_waits_for_it_and_the_rest_goes_on() -> None:
    large, small = new_worker(), new_worker(num_blocks=4)
    long = list(range(30))
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        port = await serving.enter_async_context(serve_worker(large))
        ports = [port, await stack.enter_async_context(serve_worker(small))]
        fleet, stub = await stack.enter_async_context(serve_fleet(ports, []))
        await all_connected(fleet)
        description = await stub.Describe(scheduler_pb2.DescribeRequest())
        assert description.kv_capacity_tokens == 16
        large.may_run.clear()
        client = Client(stub)
        await client.send(add(1, long), add(2, [1], max_tokens=8), add(3, [2], max_tokens=8))
        await until(lambda: large.num_plans > 0)
        await serving.aclose()
        await client.read_until(lambda: len(client.finished) == 2)
        assert client.tokens == {2: truth([1], 8), 3: truth([2], 8)}
        assert fleet.dispatcher.num_waiting == 1
        large.may_run.set()
        await stack.enter_async_context(serve_worker(large, port))
        await client.read_until(lambda: len(client.finished) == 3)
    assert client.tokens[1] == truth(long)


async def test_a_worker_that_comes_back_smaller_ends_only_what_fits_nowhere() -> None:
    one = new_worker()
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        port = await serving.enter_async_context(serve_worker(one))
        fleet, stub = await stack.enter_async_context(serve_fleet([port], []))
        one.may_run.clear()
        client = Client(stub)
        await client.send(add(1, list(range(30))), add(2, [1], max_tokens=8))
        await until(lambda: num_requests(fleet) == 2)
        await serving.aclose()
        await stack.enter_async_context(serve_worker(new_worker(num_blocks=4), port))
        await client.read_until(lambda: len(client.finished) == 2)
    assert client.finished[1].reason == scheduler_pb2.FINISH_REASON_ERROR
    assert "the next one is smaller" in client.finished[1].message
    assert client.tokens == {2: truth([1], 8)}


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers.test stands for; it is looked up again and again."""
    addresses = ["127.0.0.1", "127.0.0.2"]

    async def resolve(host: str) -> Sequence[str]:
        assert host == "workers.test"
        return addresses

    monkeypatch.setattr("optimist_common.network.endpoints.resolve_host", resolve)
    monkeypatch.setattr("optimist_common.network.endpoints.RESOLVE_SECONDS", 0.05)
    return addresses


async def test_workers_come_and_go_by_name(addresses: list[str]) -> None:
    servicers = [new_worker() for _ in range(3)]
    for servicer in servicers:
        servicer.step_seconds = 0.01
    async with AsyncExitStack() as stack:
        serving = [AsyncExitStack() for _ in servicers]
        port = await serving[0].enter_async_context(serve_worker(servicers[0]))
        await serving[1].enter_async_context(serve_worker(servicers[1], port, "127.0.0.2"))
        fleet, stub = await stack.enter_async_context(
            serve_fleet([], [], workers=[f"workers.test:{port}"])
        )
        await all_connected(fleet)
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle], max_tokens=50) for handle in range(8)))
        await client.read_until(lambda: len(client.tokens) == 8)
        await serving[2].enter_async_context(serve_worker(servicers[2], port, "127.0.0.3"))
        addresses[:] = ["127.0.0.2", "127.0.0.3"]
        # The first works still; it goes when its stream breaks.
        await all_connected(fleet, 3)
        await serving[0].aclose()
        await until(lambda: len(fleet.engines) == 2)
        await client.read_until(lambda: len(client.finished) == 8)
        assert sorted(engine.peer.target for engine in fleet.engines) == [
            f"127.0.0.2:{port}",
            f"127.0.0.3:{port}",
        ]
        check_rest(fleet)
        for each in serving[1:]:
            stack.push_async_exit(each)
    assert client.tokens == {handle: truth(PROMPTS[handle], 50) for handle in range(8)}
    assert servicers[2].worker.admitted


async def test_a_worker_keeps_its_requests_while_its_name_gets_another_address(
    addresses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    del addresses[1]
    servicers = [new_worker(), new_worker()]
    for servicer in servicers:
        servicer.step_seconds = 0.01
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve_worker(servicers[0]))
        fleet, stub = await stack.enter_async_context(
            serve_fleet([], [], workers=[f"workers.test:{port}"])
        )
        await all_connected(fleet, 1)
        (engine,) = fleet.engines
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle], max_tokens=50) for handle in range(4)))
        await client.read_until(lambda: len(client.tokens) == 4)
        async with serve_worker(servicers[1], port, "127.0.0.2"):
            addresses.append("127.0.0.2")
            await all_connected(fleet, 2)
            assert engine in fleet.engines
            addresses.pop()
            await until(lambda: len(fleet._endpoints.peers) == 1)
        await until(lambda: fleet.engines == [engine])
        await client.read_until(lambda: len(client.finished) == 4)
        check_rest(fleet)
    assert client.tokens == {handle: truth(PROMPTS[handle], 50) for handle in range(4)}
    assert fleet.dispatcher.num_moved == 0
    assert not servicers[1].worker.admitted
    # The other one leaves without requests; the first is never lost.
    assert [one for one in caplog.messages if "lost the worker" in one and "127.0.0.1" in one] == []


async def test_requests_wait_for_the_only_worker_to_come_back_at_another_address(
    addresses: list[str],
) -> None:
    del addresses[1]
    first, second = new_worker(), new_worker()
    first.may_run.clear()
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        port = await serving.enter_async_context(serve_worker(first))
        fleet, stub = await stack.enter_async_context(
            serve_fleet([], [], workers=[f"workers.test:{port}"])
        )
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle]) for handle in range(4)))
        await until(lambda: num_requests(fleet) == 4)
        first.may_run.set()
        await serving.aclose()
        await all_connected(fleet, 0)
        addresses[:] = ["127.0.0.2"]
        await stack.enter_async_context(serve_worker(second, port, "127.0.0.2"))
        await client.read_until(lambda: len(client.finished) == 4)
        await until(lambda: [one.peer.target for one in fleet.engines] == [f"127.0.0.2:{port}"])
        check_rest(fleet)
    assert client.tokens == {handle: ANSWERS[handle] for handle in range(4)}


def test_a_log_that_cannot_be_written_ends_the_start_of_workers_by_name(tmp_path: Path) -> None:
    log = str(tmp_path / "no" / "log")
    with pytest.raises(SetupError, match="--replay-log: cannot write"):
        Fleet(SchedulerSettings(workers=["workers.test:1"], insecure=True, replay_log=log))


def replayed(log: Path) -> set[str | None]:
    """Replays a log; returns the events in it."""
    with log.open("rb") as file:
        report = replay(file)
        assert report.difference is None
        assert report.num_plans > 5
        file.seek(0)
        return {entry and entry.WhichOneof("event") for entry in read_entries(file)}


async def test_workers_that_come_and_go_come_out_again_from_the_log(
    addresses: list[str], tmp_path: Path
) -> None:
    lasting = new_worker()
    log = tmp_path / "log"
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve_worker(lasting))
        fleet, stub = await stack.enter_async_context(
            serve_fleet([], [], workers=[f"workers.test:{port}"], replay_log=str(log))
        )
        for number in range(2, 5):
            addresses[1] = f"127.0.0.{number}"
            targets = {f"{address}:{port}" for address in addresses}
            await until(lambda: {engine.peer.target for engine in fleet.engines} == targets)  # noqa: B023
            async with serve_worker(new_worker(), port, addresses[1]):
                await all_connected(fleet)
                client = await ask(
                    stub, *(add(handle, prompt) for handle, prompt in PROMPTS.items())
                )
                assert client.tokens == ANSWERS
            await all_connected(fleet, 1)
    assert {"reached", "lost", "left", "closed"} < replayed(log)


async def test_workers_that_are_reached_together_take_over_from_one_that_vanished(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, num_reached, may_begin = WorkerLink.connect, 0, asyncio.Event()
    may_begin.set()

    async def connect_and_wait(link: WorkerLink, check: CheckWorker) -> WorkerDescription:
        nonlocal num_reached
        description = await connect(link, check)
        num_reached += 1
        await may_begin.wait()
        return description

    monkeypatch.setattr(WorkerLink, "connect", connect_and_wait)
    first, second, third = (new_worker() for _ in range(3))
    first.may_run.clear()
    async with AsyncExitStack() as stack:
        serving = AsyncExitStack()
        port = await serving.enter_async_context(serve_worker(first))
        fleet, stub = await stack.enter_async_context(
            serve_fleet([], [], workers=[f"workers.test:{port}"])
        )
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle]) for handle in range(4)))
        await until(lambda: num_requests(fleet) == 4)
        may_begin.clear()
        addresses[:] = ["127.0.0.2", "127.0.0.3"]
        await stack.enter_async_context(serve_worker(second, port, "127.0.0.2"))
        await stack.enter_async_context(serve_worker(third, port, "127.0.0.3"))
        await until(lambda: num_reached == 3)
        first.may_run.set()
        await serving.aclose()
        await all_connected(fleet, 0)
        may_begin.set()
        await client.read_until(lambda: len(client.finished) == 4)
        await until(lambda: len(fleet.engines) == 2)
        check_rest(fleet)
    assert client.tokens == {handle: ANSWERS[handle] for handle in range(4)}


async def test_a_hanging_worker_is_given_up_while_there_is_another(
    workers: list[FakeWorkerServicer],
) -> None:
    async with serve_fleet(all_ports(workers), [], hang_seconds=0.2) as (fleet, stub):
        await all_connected(fleet)
        workers[0].may_run.clear()
        assert workers[0].server is not None
        await workers[0].server.set_alive(alive=False)
        client = Client(stub)
        await client.send(*(add(handle, PROMPTS[handle]) for handle in range(6)))
        await client.read_until(lambda: len(client.finished) == 6)
        assert fleet.dispatcher.num_workers == 1
        assert fleet.seconds_at_work() < 0.2
        # It says that it is stuck until it is not.
        await workers[0].server.set_alive(alive=True)
        await all_connected(fleet)
        workers[0].may_run.set()
    assert client.tokens == {handle: ANSWERS[handle] for handle in range(6)}


async def test_moves_come_out_again_from_the_log(
    workers: list[FakeWorkerServicer], tmp_path: Path, proposer_port: int
) -> None:
    workers[0].break_at, workers[1].break_at = {4, 20}, {9}
    log = tmp_path / "log"
    options: dict[str, Any] = {"replay_log": str(log), "enable_prefix_caching": True}
    async with serve_fleet(
        all_ports(workers), [proposer_port], proposer_wait_ms=2000, **options
    ) as (fleet, stub):
        await all_connected(fleet)
        commands = [
            add(handle, prompt, predicted=truth(prompt)) for handle, prompt in PROMPTS.items()
        ]
        client = await ask(stub, *commands)
    assert client.tokens == ANSWERS
    assert {"lost", "adopted", "window"} < replayed(log)


async def test_priorities_and_aborts_find_their_request(
    workers: list[FakeWorkerServicer],
) -> None:
    for worker in workers:
        worker.may_run.clear()
    async with serve_fleet(all_ports(workers), [], policy="priority") as (fleet, stub):
        await all_connected(fleet)
        client = Client(stub)
        await client.send(*(add(handle, prompt) for handle, prompt in PROMPTS.items()))
        await until(lambda: num_requests(fleet) == 12)
        for handle in (3, 8, 11):
            change = scheduler_pb2.SetPriority(handle=handle, priority=-handle)
            command = scheduler_pb2.ConnectRequest(command_id=100 + handle, set_priority=change)
            assert (await client.reply(command)).error == ""
        for handle in (0, 1, 9, 10):
            end = scheduler_pb2.Abort(handle=handle, wants_finished=True)
            await client.send(scheduler_pb2.ConnectRequest(command_id=200 + handle, abort=end))
        await client.read_until(lambda: len(client.finished) == 4)
        twice = await client.reply(add(50, [1], request_id="r5"))
        assert "request_id: is in use" in twice.error
        for worker in workers:
            worker.may_run.set()
        await client.read_until(lambda: len(client.finished) == 13)
        check_rest(fleet)
        await asyncio.sleep(0)
    left = [handle for handle in PROMPTS if handle not in (0, 1, 9, 10)]
    assert {handle: client.tokens[handle] for handle in left} == {
        handle: ANSWERS[handle] for handle in left
    }
