"""Pauses over real sockets, with a fake worker."""

import asyncio

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.scheduler.client import KEEP, MODES, PROMPT, Client, add, pause, resume, truth, until
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeWorkerServicer, serve_worker

WAIT = scheduler_pb2.PAUSE_MODE_WAIT
ABORT = scheduler_pb2.PAUSE_MODE_ABORT


@pytest.mark.parametrize("mode", MODES)
async def test_a_pause_keeps_what_runs_waits_for_it_or_ends_all(
    start: Start, mode: str, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.005
    engine, client = await start(max_num_seqs=2, **MODES[mode])
    scheduler, other = engine.scheduler, Client(client.stub)
    await client.send(add(1, PROMPT, max_tokens=40), add(2, [8], max_tokens=40))
    await client.read_until(lambda: {1, 2} <= set(client.tokens))
    assert (await client.reply(pause(KEEP, 500))).error == ""
    assert scheduler.num_plans_in_flight == worker.num_plans == 0
    num_steps = worker.worker.num_steps
    await client.reply(add(3, [9]))
    await asyncio.sleep(0.02)
    assert worker.worker.num_steps == num_steps
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    await client.reply(resume(600))
    # What runs ends, and nothing begins.
    assert (await client.reply(pause(WAIT, 501))).error == ""
    assert set(client.finished) == {1, 2}
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    assert worker.worker.admitted == ["r1", "r2"]
    await client.reply(resume(601))
    await client.until_finished(3)
    await client.send(*(add(handle, [handle]) for handle in (4, 5, 6)))
    await client.read_until(lambda: 4 in client.tokens)
    await other.reply(add(7, [7]))
    assert (await client.reply(pause(ABORT, 502))).error == ""
    assert set(client.finished) == set(range(1, 7))
    await other.read_until(lambda: 7 in other.finished)
    ended = [*other.finished.values(), *(client.finished[handle] for handle in (4, 5, 6))]
    assert {end.reason for end in ended} == {scheduler_pb2.FINISH_REASON_ABORTED}
    assert client.finished[4].num_passes == len(client.tokens[4])
    await client.reply(add(8, PROMPT))
    await asyncio.sleep(0.02)
    assert 8 not in client.tokens
    await client.reply(resume(602))
    await client.read_until(lambda: 8 in client.finished)
    assert scheduler.num_free_blocks == 32
    assert client.tokens[1] == truth(PROMPT, 40)
    assert client.tokens[2] == truth([8], 40)
    assert (client.tokens[3], client.tokens[8]) == (truth([9]), truth(PROMPT))
    assert worker.num_streams == 1


async def begin(client: Client) -> None:
    """Waits until a request of the client is running."""
    await client.send(add(1, PROMPT, max_tokens=50))
    await client.read_until(lambda: 1 in client.tokens)


async def test_a_pause_that_is_pending_gets_another_mode_or_is_ended_by_a_resume(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    _, client = await start()
    await begin(client)
    await client.send(pause(WAIT, 500), pause(KEEP, 501))
    await client.read_until(lambda: {500, 501} <= set(client.replies))
    assert {client.replies[500].error, client.replies[501].error} == {""}
    assert not client.finished
    await client.send(resume(600), pause(WAIT, 502), resume(601))
    await client.read_until(lambda: {502, 601} <= set(client.replies))
    assert client.replies[502].error.startswith("pause: was ended by a resume")
    assert client.replies[601].error == ""
    await client.read_until(lambda: 1 in client.finished)
    assert client.tokens == {1: truth(PROMPT, 50)}


async def test_a_pause_is_withdrawn_with_its_stream(
    start: Start, worker: FakeWorkerServicer
) -> None:
    engine, client = await start(max_plans_in_flight=1)
    other = Client(client.stub)
    worker.may_run.clear()
    await client.send(add(1, PROMPT))
    await until(lambda: worker.num_plans == 1)
    await other.send(pause(WAIT))
    await until(lambda: engine.scheduler.is_paused)
    other.close()
    await until(lambda: not engine.scheduler.is_paused)
    worker.may_run.set()
    await client.read_until(lambda: 1 in client.finished)
    assert client.tokens == {1: truth(PROMPT)}


async def test_a_pause_that_was_answered_outlives_its_stream(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.02
    engine, client = await start(max_plans_in_flight=1)
    first, second = Client(client.stub), Client(client.stub)
    await begin(client)
    await first.reply(pause(KEEP))
    first.close()
    # It lets the request go on, until it is withdrawn.
    worker.may_run.clear()
    await second.send(pause(WAIT))
    await until(lambda: worker.num_plans == 1)
    assert not engine.scheduler.is_quiet
    second.close()
    worker.may_run.set()
    await until(lambda: engine.scheduler.is_quiet)
    assert 1 not in client.finished
    await client.reply(resume())
    await client.read_until(lambda: 1 in client.finished)
    assert client.tokens == {1: truth(PROMPT, 50)}


async def test_a_stream_without_further_commands_waits_for_its_pause(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    engine, client = await start()
    other = Client(client.stub)
    await begin(client)
    await other.send(pause(WAIT))
    await other.read_to_the_end()
    assert other.replies[500].error == ""
    assert engine.scheduler.is_paused
    await client.read_until(lambda: 1 in client.finished)


@pytest.mark.parametrize("mode", [KEEP, WAIT, ABORT])
async def test_a_pause_is_answered_while_the_worker_is_away(
    start: Start, mode: "scheduler_pb2.PauseMode.ValueType", worker: FakeWorkerServicer
) -> None:
    engine, client = await start(max_plans_in_flight=2)
    worker.may_run.clear()
    await client.send(add(1, PROMPT))
    await until(lambda: worker.num_plans == 2)
    await client.send(pause(mode, 500))
    await until(lambda: engine.scheduler.is_paused)
    await worker.stop()
    await client.read_until(lambda: 500 in client.replies)
    assert engine.scheduler.num_plans_in_flight == 0
    for command in (resume(), pause(KEEP, 501), resume(601)):
        await client.reply(command)
    worker.may_run.set()
    async with serve_worker(worker, worker.port):
        await client.reply(add(2, [8]))
        await client.until_finished(2)
    assert {reply.error for reply in client.replies.values()} == {""}
    assert client.tokens.get(1, []) == ([] if mode == ABORT else truth(PROMPT))
    assert client.tokens[2] == truth([8])
