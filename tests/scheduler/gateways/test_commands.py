"""Commands and their replies over real sockets, with a fake worker."""

import asyncio
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from tests.scheduler.client import (
    MODES,
    PATIENT,
    PROMPT,
    Client,
    Command,
    abort,
    add,
    ask,
    get_stats,
    pause,
    resume,
    truth,
    until,
)
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeProposerServicer, FakeWorkerServicer


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


@pytest.mark.parametrize("mode", MODES)
async def test_an_aborted_request_says_nothing_more_but_its_account_if_that_is_wanted(
    start: Start, mode: str, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    _, client = await start(**MODES[mode])
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


async def test_statistics_are_reported(start: Start, worker: FakeWorkerServicer) -> None:
    worker.step_seconds = 0.005
    options: dict[str, Any] = {"max_num_seqs": 1, "enable_prefix_caching": True}
    _, client = await start(max_plans_in_flight=1, **options)
    prompt = list(range(10))
    # The second shares blocks with the first, and the third has another salt.
    await client.send(*(add(handle, prompt, cache_salt="aab"[handle - 1]) for handle in (1, 2, 3)))
    await client.read_until(lambda: 1 in client.tokens)
    first = (await client.reply(get_stats())).stats
    await client.until_finished(3)
    last = (await client.reply(get_stats(3001))).stats
    assert client.tokens == dict.fromkeys((1, 2, 3), truth(prompt))
    assert (first.num_running, first.num_waiting, first.num_blocks) == (1, 2, 32)
    assert first.num_free_blocks < 32
    assert first.num_plans_in_flight == 1
    assert (last.num_running, last.num_waiting, last.num_free_blocks) == (0, 0, 32)
    assert last.num_plans == worker.worker.num_steps == 60
    assert last.num_preschedule_hits >= 45
    assert last.num_preschedule_discards <= 3
    assert worker.worker.num_cached_tokens == last.num_prefix_hits == 8
    assert last.num_prefix_queries >= 30
    assert not last.is_paused


async def test_numbers_as_large_as_may_be_end_nothing(start: Start) -> None:
    most = 2**31 - 1
    _, client = await start()
    large = add(most, PROMPT, max_tokens=most, min_tokens=most, max_draft_tokens=most)
    await client.ask(large, add(2, PROMPT))
    assert client.tokens[2] == truth(PROMPT)
    assert client.tokens[most][:20] == truth(PROMPT)
    assert client.finished[most].reason == scheduler_pb2.FINISH_REASON_LENGTH


async def test_commands_come_no_faster_than_their_replies_are_read(start: Start) -> None:
    _, client = await start()
    commands = [get_stats(command_id) for command_id in range(1, 4001)]
    sending = asyncio.create_task(client.send(*commands))
    await asyncio.sleep(0.3)
    await client.read_until(lambda: len(client.replies) == len(commands))
    await sending


# Requests that go on after output which their owner has already.

GIVEN = {1: 1, 2: 7, 3: 19}
"""How much of its output each request has."""
REST = {handle: truth(PROMPT)[number:] for handle, number in GIVEN.items()}


@pytest.mark.parametrize("mode", MODES)
async def test_only_what_comes_after_it_is_delivered_and_a_proposer_knows_it_from_the_start(
    start: Start, mode: str, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    _, first = await start(proposer_port, **PATIENT, **MODES[mode])
    for predicted in ([], truth(PROMPT)):
        most: dict[str, Any] = {"predicted": predicted} if predicted else {"max_draft_tokens": 0}
        given = {handle: to_bytes(truth(PROMPT)[:number]) for handle, number in GIVEN.items()}
        commands = [add(each, PROMPT, output_token_ids=given[each], **most) for each in given]
        client = await ask(first.stub, *commands)
        assert client.tokens == REST
        for handle, end in client.finished.items():
            by_source = from_bytes(end.num_tokens_by_source).tolist()
            assert sum(by_source) == len(REST[handle])
            assert by_source[DraftSource.PREDICTION] == end.accepted_prediction_tokens
            assert end.num_passes + sum(by_source[1:]) == len(REST[handle])
            if predicted:
                # The first pass emits a token of its own.
                assert end.accepted_prediction_tokens >= max(len(REST[handle]) - 4, 0) // 2
            else:
                assert by_source[DraftSource.TARGET] == len(REST[handle])
    await until(lambda: sorted(proposer.closed) == ["r1", "r2", "r3"])
    assert proposer.num_gaps == 0
