"""Commands and their replies, and pauses, over real sockets with a fake worker."""

import asyncio

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes
from tests.scheduler.client import (
    KEEP,
    MODES,
    PROMPT,
    Client,
    Command,
    abort,
    add,
    get_stats,
    pause,
    resume,
    truth,
    until,
)
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeWorkerServicer, serve_worker


def set_priority(handle: int, priority: int, name: str = "", command_id: int = 0) -> Command:
    """Changes that of a request, or of all with a name."""
    change = scheduler_pb2.SetPriority(handle=handle, priority=priority, name=name)
    return Command(command_id=command_id or 2000 + handle, set_priority=change)


async def test_what_cannot_be_carried_out_is_answered_with_the_field_and_ends_nothing(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    commands = [
        (Command(), "command: is not set"),
        (add(1, [5], request_id="other"), "add.handle: 1 is in use"),
        (pause(0), "pause.mode: must be KEEP, WAIT or ABORT, not 0"),
        (set_priority(99, 1), "set_priority.handle: no request 99 runs or waits"),
        (set_priority(1, 2**31 - 1), "set_priority.priority: must be from "),
        (add(2, PROMPT, request_id="r1"), "request_id: is in use by another request"),
        (add(2, PROMPT, cache_salt="é" * 129), "cache_salt: must be at most 256 bytes"),
        (add(2, PROMPT, names="abcde"), "names: must be at most 4, not 5"),
        (add(2, PROMPT, names=["a", ""]), "names: each must have 1 to 256 characters"),
        (add(2, PROMPT, names=["a" * 257]), "names: each must have 1 to 256 characters"),
        (add(2, PROMPT), "prompt_token_ids: 3 bytes are no int32 column"),
        # What changes nothing is no error.
        (abort(99), ""),
        (resume(), ""),
        (set_priority(1, -5), ""),
    ]
    commands[10][0].add.prompt_token_ids = b"123"
    _, client = await start(policy="priority")
    await client.send(add(1, PROMPT, max_tokens=50))
    for number, (command, error) in enumerate(commands, 100):
        if command.add.handle == 2:
            # Each request is refused once; what was refused is over.
            command.add.handle = number
        command.command_id = number
        replied = (await client.reply(command)).error
        assert replied.startswith(error), error
        assert error or not replied
        if command.add.handle == number:
            assert client.finished[number].message == replied
    await client.read_until(lambda: 1 in client.finished)
    assert client.replies[1].error == ""
    assert client.tokens == {1: truth(PROMPT, 50)}


async def test_no_priority_is_ignored(start: Start) -> None:
    _, client = await start()
    await client.send(add(1, PROMPT, names=["n"]))
    reply = await client.reply(add(2, PROMPT, priority=1))
    assert reply.error == "priority: must be 0 with the policy fcfs, not 1"
    for command in (set_priority(1, -5), set_priority(0, -5, "n")):
        reply = await client.reply(command)
        assert reply.error == "set_priority.priority: has no effect with the policy fcfs"
    described = await client.stub.Describe(scheduler_pb2.DescribeRequest())
    assert described.policy == scheduler_pb2.SCHEDULING_POLICY_FCFS
    assert (described.model, described.vocab_size, described.max_model_len) == ("fake", 50, 64)
    assert described.kv_capacity_tokens == 32 * 4
    assert from_bytes(described.eos_token_ids).tolist() == [2]


async def test_an_aborted_request_says_nothing_more_but_its_account_if_that_is_wanted(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    _, client = await start(max_plans_in_flight=3)
    for handle, wants_finished in ((1, False), (2, True)):
        await client.send(add(handle, [1], max_tokens=50))
        await client.read_until(lambda: handle in client.tokens)  # noqa: B023
        assert (await client.reply(abort(handle, wants_finished=wants_finished))).error == ""
    reported = {handle: list(tokens) for handle, tokens in client.tokens.items()}
    await client.send(add(3, PROMPT))
    await client.read_until(lambda: 3 in client.finished)
    assert client.tokens == reported | {3: truth(PROMPT)}
    assert list(client.finished) == [2, 3]
    assert client.finished[2].reason == scheduler_pb2.FINISH_REASON_ABORTED
    assert client.finished[2].num_passes == len(client.tokens[2])


async def test_priorities_are_changed_by_handle_and_by_name_whichever_stream_a_request_is_of(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.005
    _, client = await start(policy="priority", max_num_seqs=1)
    described = await client.stub.Describe(scheduler_pb2.DescribeRequest())
    assert described.policy == scheduler_pb2.SCHEDULING_POLICY_PRIORITY
    other = Client(client.stub)
    await client.send(add(1, PROMPT, priority=-9))
    await client.read_until(lambda: 1 in client.tokens)
    waiting = [add(handle, [handle], names=[f"n{handle % 2}"]) for handle in (2, 3, 4, 5)]
    await client.send(*waiting, *(add(handle, [1], priority=12 - handle) for handle in (6, 7)))
    await client.read_until(lambda: 7 in client.replies)
    reply = await other.reply(set_priority(0, -1, "n1"))
    assert (reply.error, reply.num_requests) == ("", 2)
    assert other.priorities == []
    reply = await client.reply(set_priority(0, 1, "n0"))
    assert (reply.error, reply.num_requests) == ("", 2)
    assert (await client.reply(set_priority(4, 0))).error == ""
    await client.until_finished(7)
    # What has ended has no priority.
    assert (await client.reply(set_priority(0, 1, "n0", 9))).num_requests == 0
    assert [(one.handle, one.priority) for one in client.priorities] == [(3, -1), (5, -1)]
    assert list(client.finished) == [1, 3, 5, 4, 2, 7, 6]


async def test_commands_come_no_faster_than_their_replies_are_read(start: Start) -> None:
    _, client = await start()
    commands = [get_stats(command_id) for command_id in range(1, 2501)]
    sending = asyncio.create_task(client.send(*commands))
    await asyncio.sleep(0.3)
    await client.read_until(lambda: len(client.replies) == len(commands))
    await sending


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


@pytest.mark.parametrize("mode", [KEEP, ABORT])
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
