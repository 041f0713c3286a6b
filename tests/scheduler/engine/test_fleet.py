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
from optimist_scheduler.engine import fleet as fleet_module
from optimist_scheduler.journal import read_entries
from optimist_scheduler.service.replay import replay
from optimist_scheduler.workers.description import WorkerDescription
from optimist_scheduler.workers.link import CheckWorker, WorkerLink
from tests.scheduler.client import (
    MODES,
    PATIENT,
    Client,
    Command,
    add,
    ask,
    get_stats,
    truth,
    until,
)
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_fleet,
    serve_worker,
)
from tests.scheduler.fake_worker import FakeWorker
from tests.scheduler.integrity import check_integrity

PROMPTS = {handle: [handle, 7, handle] for handle in range(12)}


def requests(number: int = len(PROMPTS), **values: Any) -> list[Command]:
    return [add(handle, PROMPTS[handle], **values) for handle in range(number)]


def answers(number: int = len(PROMPTS), max_tokens: int = 20) -> dict[int, list[int]]:
    return {handle: truth(PROMPTS[handle], max_tokens) for handle in range(number)}


def new_worker(step_seconds: float = 0.0, **values: Any) -> FakeWorkerServicer:
    servicer = FakeWorkerServicer(FakeWorker(eos_token_ids=(2,), **values))
    servicer.step_seconds = step_seconds
    return servicer


class Pool:
    """Workers that come and go, and their scheduler, which holds nothing in the end."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack, self._scheduling = stack, AsyncExitStack()

    async def serve(
        self, worker: FakeWorkerServicer, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        await self._stack.enter_async_context(serve_worker(worker, port, host))

    async def stop(self, *workers: FakeWorkerServicer) -> None:
        for worker in workers:
            await worker.stop()

    async def begin(
        self, *workers: FakeWorkerServicer, proposers: Sequence[int] = (), **options: Any
    ) -> Client:
        """Runs a scheduler that is connected to these workers; returns a client of it."""
        for worker in workers:
            if not worker.port:
                await self.serve(worker)
        serving = serve_fleet([each.port for each in workers], list(proposers), **options)
        self.fleet, self.stub = await self._scheduling.enter_async_context(serving)
        self._stack.push_async_callback(self.end)
        await self.connected(len(workers))
        return Client(self.stub)

    async def begin_by_name(self, *workers: FakeWorkerServicer, **options: Any) -> Client:
        """The same for name.test, which begins as 127.0.0.1 and so on."""
        await self.serve(workers[0])
        self.port = workers[0].port
        for number, worker in enumerate(workers[1:], 2):
            await self.serve(worker, self.port, f"127.0.0.{number}")
        return await self.begin(*workers, workers=[f"name.test:{self.port}"], **options)

    async def end(self) -> None:
        for engine in self.fleet.engines:
            check_integrity(engine.scheduler)
        assert self.num_requests == 0
        await self._scheduling.aclose()

    async def connected(self, number: int) -> None:
        await until(lambda: self.fleet.dispatcher.num_workers == number)

    @property
    def num_requests(self) -> int:
        return self.fleet.dispatcher.num_running + self.fleet.dispatcher.num_waiting

    @property
    def targets(self) -> list[str]:
        return sorted(engine.peer.target for engine in self.fleet.engines)


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        yield Pool(stack)


def replayed(log: Path) -> set[str | None]:
    """Replays a log; returns the events in it."""
    with log.open("rb") as file:
        report = replay(file)
        assert not report.difference
        assert report.num_plans > 5
        file.seek(0)
        return {entry and entry.WhichOneof("event") for entry in read_entries(file)}


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_lost_worker_had_goes_on_at_the_other(
    mode: str, pool: Pool, proposer: FakeProposerServicer, proposer_port: int, tmp_path: Path
) -> None:
    workers = [new_worker(), new_worker()]
    workers[0].break_at, workers[1].break_at = {4, 20, 33}, {9, 26}
    options = {**PATIENT, "replay_log": str(tmp_path / "log"), **MODES[mode]}
    client = await pool.begin(*workers, proposers=[proposer_port], **options)
    predicted = {handle: truth(prompt)[:handle] for handle, prompt in PROMPTS.items()}
    await client.ask(*(add(each, PROMPTS[each], predicted=predicted[each]) for each in PROMPTS))
    stats = (await client.reply(get_stats())).stats
    assert pool.fleet.dispatcher.num_moved == stats.num_moved_requests > 0
    await until(lambda: sorted(proposer.closed) == sorted({*proposer.outputs, *proposer.closed}))
    await pool.end()
    assert client.tokens == answers()
    for handle, finished in client.finished.items():
        assert finished.reason == scheduler_pb2.FINISH_REASON_LENGTH
        assert sum(from_bytes(finished.num_tokens_by_source).tolist()) == 20, handle
        assert finished.num_passes + finished.accepted_prediction_tokens == 20
    for worker in workers:
        assert len(worker.worker.admitted) >= 4
    assert {"lost", "adopted", "windows"} < replayed(tmp_path / "log")


async def test_a_worker_of_another_model_is_refused_by_name(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    workers = [new_worker(), new_worker()]
    workers[1].worker.description.eos_token_ids = (32).to_bytes(4, "little")
    for worker in workers:
        await pool.serve(worker)
    ports = [worker.port for worker in workers]
    async with serve_fleet(ports, []) as (fleet, stub):
        await until(lambda: "its eos_token_ids is" in caplog.text)
        client = await ask(stub, *requests())
        assert fleet.dispatcher.num_workers == 1
    assert client.tokens == answers()
    refused = "the worker at 127.0.0.1:{} is not reached: its eos_token_ids is"
    assert sum(refused.format(port) in caplog.text for port in ports) == 1
    assert "as that of the worker at 127.0.0.1:" in caplog.text


async def test_what_was_begun_with_another_model_ends_and_gateways_ask_again(pool: Pool) -> None:
    one, other = new_worker(0.01), new_worker()
    other.worker.description.model = "elsewhere/other"
    client = await pool.begin(one)
    idle = Client(pool.stub)
    assert (await idle.reply(Command(command_id=5))).error
    await client.send(*requests(8))
    await client.read_until(lambda: len(client.tokens) > 0)
    one.may_run.clear()
    await pool.stop(one)
    await pool.serve(other, one.port)
    for each in (client, idle):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await each.read_until(lambda: False)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(client.finished) == 8
    for finished in client.finished.values():
        assert finished.reason == scheduler_pb2.FINISH_REASON_ERROR
        assert "its model is other, not fake as that of the one before" in finished.message
    for handle, tokens in client.tokens.items():
        assert tokens == truth(PROMPTS[handle])[: len(tokens)]
    description = await pool.stub.Describe(scheduler_pb2.DescribeRequest())
    assert description.model == "elsewhere/other"
    again = await ask(pool.stub, *requests(1))
    assert again.tokens == answers(1)


async def test_what_fits_only_a_lost_worker_waits_for_it_and_the_rest_goes_on(pool: Pool) -> None:
    large, small = new_worker(), new_worker(num_blocks=4)
    long = list(range(30))
    client = await pool.begin(large, small)
    description = await pool.stub.Describe(scheduler_pb2.DescribeRequest())
    assert description.kv_capacity_tokens == 16
    large.may_run.clear()
    await client.send(add(1, long), add(2, [1], max_tokens=8), add(3, [2], max_tokens=8))
    await until(lambda: large.num_plans > 0)
    await pool.stop(large)
    await client.until_finished(2)
    assert client.tokens == {2: truth([1], 8), 3: truth([2], 8)}
    assert pool.fleet.dispatcher.num_waiting == 1
    large.may_run.set()
    await pool.serve(large, large.port)
    await client.until_finished(3)
    assert client.tokens[1] == truth(long)


async def test_a_hanging_worker_is_given_up_while_there_is_another(pool: Pool) -> None:
    hanging = new_worker()
    client = await pool.begin(hanging, new_worker(), hang_seconds=0.2)
    hanging.may_run.clear()
    await hanging.server.set_alive(alive=False)
    await client.send(*requests(6))
    await client.until_finished(6)
    assert pool.fleet.dispatcher.num_workers == 1
    assert pool.fleet.seconds_at_work() < 0.2
    # It says that it is stuck until it is not.
    await hanging.server.set_alive(alive=True)
    await pool.connected(2)
    hanging.may_run.set()
    assert client.tokens == answers(6)


# Errors of the scheduler itself.


@pytest.mark.parametrize("method", ["settle", "evacuate"])
async def test_an_error_of_the_scheduler_ends_what_one_worker_had_and_nothing_else(
    method: str, pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_module, "FAULT_PAUSE_SECONDS", 0.01)
    workers = [new_worker(0.005), new_worker(0.005)]
    if method == "evacuate":
        workers[0].break_at = {9}
    client = await pool.begin(*workers)
    await client.send(*requests(8, max_tokens=40))
    await client.read_until(lambda: len(client.tokens) == 8)
    target = f"127.0.0.1:{workers[0].port}"
    (engine,) = [one for one in pool.fleet.engines if one.peer.target == target]
    doomed = {request.handle for request in engine.scheduler._requests.values()}

    def break_down(*_: Any) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("for the test")

    monkeypatch.setattr(engine.scheduler, method, break_down)
    await client.until_finished(8)
    assert doomed
    for handle, finished in client.finished.items():
        text, tokens = truth(PROMPTS[handle], 40), client.tokens[handle]
        if handle in doomed:
            assert finished.reason == scheduler_pb2.FINISH_REASON_ERROR
            assert finished.message == fleet_module.FAILED
            assert tokens == text[: len(tokens)]
        else:
            assert tokens == text
    assert "ZeroDivisionError: for the test" in caplog.text
    await pool.connected(2)
    assert (await ask(pool.stub, *requests())).tokens == answers()
    assert engine.scheduler.num_free_blocks == 32


async def test_an_error_before_a_worker_is_reached_is_no_end_of_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "FAULT_PAUSE_SECONDS", 0.01)
    connect, num_tries = WorkerLink.connect, 0

    async def fail_first(link: WorkerLink, check: CheckWorker) -> WorkerDescription:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 3:
            raise ZeroDivisionError("for the test")
        return await connect(link, check)

    monkeypatch.setattr(WorkerLink, "connect", fail_first)
    client = await pool.begin(new_worker())
    await client.ask(*requests(2))
    assert client.tokens == answers(2)


async def test_errors_at_proposers_cost_drafts(
    pool: Pool, proposer: FakeProposerServicer, proposer_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await pool.begin(new_worker(), proposers=[proposer_port])

    def break_down(*_: Any) -> None:
        raise ZeroDivisionError("for the test")

    monkeypatch.setattr(pool.fleet._proposers, "observe", break_down)
    await client.ask(
        *(add(each, PROMPTS[each], predicted=truth(PROMPTS[each])) for each in PROMPTS)
    )
    assert client.tokens == answers()


# A request that ends its workers.


async def test_exactly_the_request_ends_that_ends_its_workers(pool: Pool) -> None:
    workers = [new_worker(0.002) for _ in range(3)]
    num_losses = 0

    def crash(worker: FakeWorkerServicer) -> bool:
        nonlocal num_losses
        rows = worker.worker.rows.values()
        is_over = any(row.request_id == "r3" and len(row.token_ids) > 8 for row in rows)
        num_losses += is_over
        return is_over

    for worker in workers:
        worker.crashes = crash
    client = await pool.begin(*workers, max_plans_in_flight=2)
    await client.ask(*requests())
    failed = client.finished.pop(3)
    assert failed.reason == scheduler_pb2.FINISH_REASON_ERROR
    assert "at last on nothing else" in failed.message
    assert num_losses == 3
    tokens = client.tokens.pop(3)
    whole = answers()
    assert whole.pop(3)[: len(tokens)] == tokens
    assert client.tokens == whole


# Workers of a name.


async def test_workers_come_and_go_by_name(
    pool: Pool, addresses: list[str], tmp_path: Path
) -> None:
    workers = [new_worker(0.01) for _ in range(3)]
    addresses.append("127.0.0.2")
    log = tmp_path / "log"
    client = await pool.begin_by_name(*workers[:2], replay_log=str(log))
    await client.send(*requests(8, max_tokens=50))
    await client.read_until(lambda: len(client.tokens) == 8)
    await pool.serve(workers[2], pool.port, "127.0.0.3")
    addresses[:] = ["127.0.0.2", "127.0.0.3"]
    # The first works still; it goes when its stream breaks.
    await pool.connected(3)
    await pool.stop(workers[0])
    await until(lambda: len(pool.fleet.engines) == 2)
    await client.until_finished(8)
    assert pool.targets == [f"127.0.0.2:{pool.port}", f"127.0.0.3:{pool.port}"]
    assert client.tokens == answers(8, 50)
    assert workers[2].worker.admitted
    await pool.end()
    assert {"reached", "lost", "left", "closed"} < replayed(log)


async def test_two_that_were_reached_together_take_over_from_the_only_worker(
    pool: Pool, addresses: list[str], monkeypatch: pytest.MonkeyPatch
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
    first = new_worker()
    first.may_run.clear()
    client = await pool.begin_by_name(first)
    await client.send(*requests(4))
    await until(lambda: pool.num_requests == 4)
    may_begin.clear()
    addresses[:] = ["127.0.0.2", "127.0.0.3"]
    for address in addresses:
        await pool.serve(new_worker(), pool.port, address)
    await until(lambda: num_reached == 3)
    first.may_run.set()
    await pool.stop(first)
    await pool.connected(0)
    may_begin.set()
    await client.until_finished(4)
    await until(lambda: pool.targets == [f"{address}:{pool.port}" for address in addresses])
    assert client.tokens == answers(4)
