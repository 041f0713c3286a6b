"""Several schedulers: where requests go, and how they go on when one is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.network import endpoints
from optimist_gateway.core.request import JsonContent, Structure
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import MAX_LOSSES, SchedulerUnavailableError
from optimist_gateway.structure.grammars import grammar
from optimist_gateway.structure.json_schema import allow_white_space
from optimist_gateway.structure.tool_format import HERMES
from tests.gateway.fake_scheduler import FakeScheduler, Script, Step, start_scheduler, tokens
from tests.gateway.harness import until
from tests.gateway.schedulers.fleet import ANSWER, SCRIPT, VOCAB_SIZE, Fleet, Reading, add


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Of two schedulers."""
    async with Fleet(2) as started:
        yield started


async def test_nothing_of_the_prompt_comes_twice(fleet: Fleet) -> None:
    sampling = sampling_pb2.SamplingParams(num_prompt_logprobs=1)
    prompt = list(range(2, 14))
    stream, index = await fleet.begun(2, prompt=prompt, sampling=sampling)
    await fleet.kill(index)
    assert await stream.tokens() == ANSWER
    positions = [
        one.logprobs.first_prompt_position + index
        for one in stream.outputs
        if one.logprobs is not None
        for index in range(len(one.logprobs.prompt))
    ]
    assert positions == list(range(1, len(prompt)))


async def test_a_field_goes_where_it_is_supported(fleet: Fleet) -> None:
    fleet.fakes[0].unsupported_fields = ["sampling.min_p"]
    fleet.fakes[1].unsupported_after_output = ["sampling.presence_penalty"]
    for index in range(2):
        await fleet.restart(index)
        await fleet.until_connected(2)
    assert not fleet.pool.description.unsupported_fields
    for number in range(4):
        sampling = sampling_pb2.SamplingParams(min_p=0.5)
        assert await fleet.read(f"{number}", sampling=sampling).tokens() == ANSWER
    assert [len(fake.adds) for fake in fleet.fakes] == [0, 4]


async def test_another_engine_takes_the_white_space_that_the_first_one_wrote(fleet: Fleet) -> None:
    structure = Structure(JsonContent({"type": "object"}, is_lenient=False))
    bounded = grammar(structure, HERMES, {})
    fleet.fakes[1].engine = "another engine"
    await fleet.restart(1)
    await fleet.until_connected(2)
    stream, index = await fleet.begun(sampling=sampling_pb2.SamplingParams(grammar=bounded))
    await fleet.kill(index)
    assert await stream.tokens() == ANSWER
    (first,), (second,) = fleet.fakes[index].adds, fleet.fakes[1 - index].adds
    assert first.sampling.grammar == bounded
    free = allow_white_space(bounded)
    assert free != bounded
    assert second.sampling.grammar == free


async def test_a_request_waits_for_its_only_scheduler() -> None:
    async with Fleet(1) as fleet:
        stream, index = await fleet.begun()
        await fleet.kill(index)
        await until(lambda: fleet.pool.num_waiting == 1)
        with pytest.raises(SchedulerUnavailableError):
            fleet.read("two")
        fleet.fakes[0].hold_after = None
        await fleet.restart(0)
        assert await stream.tokens() == ANSWER
        assert not stream.finished.is_whole
        first, second = fleet.fakes[0].adds
        assert (first.request_id, second.request_id) == ("one", "one~2")
        assert tokens(second.output_token_ids) == ANSWER[:1]
        assert fleet.pool.num_waiting == 0


async def test_a_request_that_ends_every_scheduler_is_given_up(fleet: Fleet) -> None:
    fleet.play(Script(break_stream=True))
    with pytest.raises(SchedulerUnavailableError, match="went away"):
        await fleet.read().next()
    assert sum(len(fake.adds) for fake in fleet.fakes) == MAX_LOSSES


async def test_a_request_may_lose_any_number_of_schedulers_between_its_tokens(fleet: Fleet) -> None:
    number = MAX_LOSSES + 2
    fleet.play(Script([Step([token]) for token in range(number)]))
    for fake in fleet.fakes:
        fake.hold_after = 1
    stream = fleet.read()
    for _ in range(number - 1):
        await stream.next()
        index = next(i for i, one in enumerate(fleet.pool.clients) if one.requests)
        await fleet.restart(index)
    assert await stream.tokens() == list(range(number))


@pytest.mark.parametrize("drains", [True, False])
async def test_requests_leave_what_drains_or_has_no_workers(fleet: Fleet, drains: bool) -> None:
    for fake in fleet.fakes:
        fake.stats = scheduler_pb2.Stats(num_workers=1)
    stream, index = await fleet.begun()
    await until(lambda: all(client.stats is not None for client in fleet.pool.clients))
    fleet.fakes[index].stats = scheduler_pb2.Stats(num_workers=int(drains))
    await fleet.servers[index].set_serving(serving=not drains)
    assert await stream.tokens() == ANSWER
    assert await fleet.fakes[index].aborts.get() == 1
    assert [client.is_sound for client in fleet.pool.clients] == [index == 1, index == 0]
    await require_unused(fleet, index)


async def require_unused(fleet: Fleet, index: int, num_before: int = 1) -> None:
    """One scheduler gets no more requests."""
    for number in range(4):
        assert await fleet.ask(f"new-{number}") == ANSWER
    assert len(fleet.fakes[index].adds) == num_before


async def test_requests_stay_where_an_engine_hangs(fleet: Fleet) -> None:
    stream, index = await fleet.begun()
    client = fleet.pool.clients[index]
    await fleet.servers[index].set_stuck(stuck=True)
    await fleet.servers[index].set_serving(serving=False)
    await until(lambda: client.health.is_hung and client.health.is_draining)
    await asyncio.sleep(0.3)
    assert len(client.requests) == 1
    await require_unused(fleet, index)
    stream.close()


@pytest.mark.parametrize(("retries", "expected"), [((40_000, 9_000), 9.0), ((0, 0), None)])
async def test_of_several_full_schedulers_the_first_with_room_is_waited_for(
    fleet: Fleet, retries: tuple[int, int], expected: float | None
) -> None:
    for fake, retry_ms in zip(fleet.fakes, retries, strict=True):
        fake.scripts = [Script(reason=scheduler_pb2.FINISH_REASON_OVERLOADED, retry_ms=retry_ms)]
    stream = fleet.read()
    assert await stream.tokens() == []
    assert stream.finished.retry_seconds == expected


async def test_a_request_that_was_begun_waits_for_room(fleet: Fleet) -> None:
    full = Script(reason=scheduler_pb2.FINISH_REASON_OVERLOADED)
    stream, index = await fleet.begun()
    fleet.fakes[1 - index].scripts = [full]
    await fleet.kill(index)
    assert await stream.tokens() == ANSWER
    assert len(fleet.fakes[1 - index].adds) == 2


async def test_a_scheduler_of_another_model_gets_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.restart(1, vocab_size=VOCAB_SIZE + 1)
    await until(lambda: "gets no requests" in caplog.text)
    assert f"vocab_size is {VOCAB_SIZE + 1}, not {VOCAB_SIZE}" in caplog.text
    assert f"127.0.0.1:{fleet.fakes[1].port}" in caplog.text
    await require_unused(fleet, 1, 0)


async def test_a_request_that_waits_can_be_ended() -> None:
    async with Fleet(1) as fleet:
        closed, _ = await fleet.begun()
        finished = fleet.read("two")
        assert await finished.next() == [7]
        await fleet.kill(0)
        await until(lambda: fleet.pool.num_waiting == 2)
        closed.close()
        assert await finished.finish() is None
        assert fleet.pool.num_waiting == 0


async def test_schedulers_come_and_go_with_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["127.0.0.2"]

    async def resolve(host: str) -> list[str]:
        return known

    monkeypatch.setattr(endpoints, "resolve_host", resolve)
    monkeypatch.setattr(endpoints, "RESOLVE_SECONDS", 0.05)
    fakes = [FakeScheduler(VOCAB_SIZE, script=SCRIPT) for _ in range(2)]
    first, port = await start_scheduler(fakes[0], host="127.0.0.2")
    second, _ = await start_scheduler(fakes[1], port, host="127.0.0.3")
    pool = SchedulerPool([f"schedulers.test:{port}"], 8, 20.0)
    task = asyncio.create_task(pool.run())

    def connected() -> set[str]:
        return {one.peer.target for one in pool.clients if one.description is not None}

    try:
        known.append("127.0.0.3")
        await until(lambda: connected() == {f"127.0.0.2:{port}", f"127.0.0.3:{port}"})
        fakes[0].hold_after = fakes[1].hold_after = 1
        streams = [Reading(pool.add(add(f"request-{number}"))) for number in range(6)]
        for stream in streams:
            assert await stream.next() == [7]
        # What still works is kept; what vanished and is lost, is not.
        known.remove("127.0.0.2")
        await until(lambda: any(client.is_retired for client in pool.clients))
        assert len(connected()) == 2
        fakes[1].hold_after = None
        await first.server.stop(None)
        await until(lambda: connected() == {f"127.0.0.3:{port}"})
        await until(lambda: len(pool.clients) == 1)
        assert fakes[0].adds
        for stream in streams:
            stream.close()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for server in (first, second):
            await server.server.stop(None)
