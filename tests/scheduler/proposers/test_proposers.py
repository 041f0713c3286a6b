"""Predictions over real sockets, with a fake worker and fake proposers."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from optimist_common.columns import from_bytes
from optimist_scheduler.engine.engine import Engine
from optimist_scheduler.proposers import links
from tests.scheduler.client import (
    PATIENT,
    PROMPT,
    add,
    predict,
    truth,
    until,
)
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeProposerServicer, FakeWorkerServicer, serve_proposer
from tests.scheduler.fake_worker import FakeWorker


async def test_a_proposer_that_lost_its_memory_is_sent_everything_again(
    start: Start, worker: FakeWorkerServicer, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.01
    proposer.window_tokens = 1
    _, client = await start(proposer_port, **PATIENT)
    await client.send(predict(1, [9, 9], 40))
    await client.read_until(lambda: bool(client.tokens))
    proposer.forget()
    await client.until_finished(1)
    assert client.tokens[1] == truth([9, 9], 40)
    assert proposer.num_gaps == 1
    assert client.finished[1].accepted_prediction_tokens >= 10


async def test_a_silent_proposer_is_waited_for_once_and_an_unreachable_one_never(
    start: Start, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    _, client = await start(1, proposer_wait_ms=3_600_000)
    await client.ask(predict())
    assert client.tokens[1] == truth(PROMPT)
    proposer.delay_seconds = 3600
    _, client = await start(proposer_port, proposer_wait_ms=200)
    started = asyncio.get_running_loop().time()
    await client.ask(predict())
    # Twenty waits would take four seconds; how fast the rest is does not matter.
    assert asyncio.get_running_loop().time() - started < 4
    assert client.tokens[1] == truth(PROMPT)
    assert client.finished[1].num_passes == 20


async def test_a_request_stays_with_the_proposer_that_opened_it(
    start: Start, worker: FakeWorkerServicer, proposers: list[FakeProposerServicer]
) -> None:
    worker.step_seconds = 0.002
    _, client = await start(*(each.port for each in proposers))
    await client.ask(*(predict(handle, [handle, 7]) for handle in range(1, 7)))
    await until(lambda: sum(len(each.closed) for each in proposers) == 6)
    assert client.tokens == {handle: truth([handle, 7]) for handle in range(1, 7)}
    # Nothing had to be sent again, and each was sent the ends of its own.
    for each in proposers:
        assert each.num_gaps == 0
        assert each.opened == sorted(each.closed)


async def test_a_proposer_that_falls_silent_is_passed_over_until_it_answers(
    start: Start,
    worker: FakeWorkerServicer,
    proposers: list[FakeProposerServicer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.5)
    worker.step_seconds = 0.03
    mute, other = proposers[:2]
    mute.delay_seconds = 3.0
    _, client = await start(mute.port, other.port)
    # Of equal ones the first gets a request, which moves when nothing comes.
    await client.send(predict(1, PROMPT, 50))
    await until(lambda: len(other.opened) == 1)
    assert len(mute.opened) == 1
    await client.until_finished(1)
    assert client.tokens[1] == truth(PROMPT, 50)
    worker.step_seconds = 0.001
    for handle in range(2, 8):
        await client.ask(predict(handle, [handle, 7]))
    assert len(other.opened) >= 7
    # It answers one batch after the other, and then gets requests as before.
    mute.delay_seconds = 0.0
    for handle in range(8, 400):
        await client.ask(predict(handle, [handle % 40, 7]))
        if len(mute.opened) > 1:
            break
    assert len(mute.opened) > 1


async def test_a_refused_request_is_followed_no_longer(
    start: Start,
    proposer_port: int,
    proposer: FakeProposerServicer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer.refused = {"r1"}
    _, client = await start(proposer_port, **PATIENT)
    await client.ask(predict(), predict(2, [7]))
    assert client.tokens == {1: truth(PROMPT), 2: truth([7])}
    assert client.finished[1].num_passes == 20
    assert client.finished[2].accepted_prediction_tokens > 0
    lines = [record.message for record in caplog.records if "r1" in record.message]
    assert lines == ["no drafts from proposers for request r1: too long for the test"]


async def test_windows_that_cannot_be_are_refused_and_others_of_the_answer_taken(
    start: Start,
    proposer_port: int,
    proposer: FakeProposerServicer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer.spoiled = {"r1"}
    _, client = await start(proposer_port, **PATIENT)
    await client.ask(*map(predict, range(6)))
    assert client.tokens == dict.fromkeys(range(6), truth(PROMPT))
    for handle, end in client.finished.items():
        assert (end.accepted_prediction_tokens > 0) == (handle != 1)
    assert client.finished[1].num_passes == 20
    lines = [record.message for record in caplog.records if "refused" in record.message]
    fault = "values: must be from 1 down to 0, and never rise"
    assert lines == [f"a window of request r1 is refused: {fault}"]


# Proposers that say that they take no more requests, and those that come and go by name.


async def test_requests_leave_a_proposer_that_takes_no_more(
    start: Start, worker: FakeWorkerServicer, proposers: list[FakeProposerServicer]
) -> None:
    worker.step_seconds = 0.01
    first, second, _ = proposers
    engine, client = await start(first.port, second.port)
    await until_linked(engine)
    await client.send(*(predict(handle, PROMPT, 50) for handle in range(1, 5)))
    await until(lambda: len(first.opened) == len(second.opened) == 2)
    theirs = list(first.opened)
    await first.server.set_serving(serving=False)
    # At once, not only when there are tokens to tell.
    worker.may_run.clear()
    await until(lambda: set(second.opened) == {"r1", "r2", "r3", "r4"})
    assert second.num_gaps == 0
    for request_id in theirs:
        assert second.predictions[request_id] == truth(PROMPT, 50)
    await client.send(predict(5, PROMPT, 50))
    await until(lambda: "r5" in second.opened)
    worker.may_run.set()
    await client.until_finished(5)
    await until(lambda: second.predictions == {})
    assert first.opened == theirs
    assert client.tokens == dict.fromkeys(range(1, 6), truth(PROMPT, 50))


async def test_a_proposer_that_takes_no_more_is_better_than_none(
    start: Start, proposer: FakeProposerServicer, proposer_port: int
) -> None:
    await proposer.server.set_serving(serving=False)
    _, client = await start(proposer_port, **PATIENT)
    await client.ask(predict())
    assert client.finished[1].accepted_prediction_tokens > 10


async def test_proposers_come_and_go_by_name(
    start: Start, worker: FakeWorkerServicer, proposer: FakeProposerServicer, addresses: list[str]
) -> None:
    worker.may_run.clear()
    servicers = [proposer, FakeProposerServicer(), FakeProposerServicer()]
    addresses.append("127.0.0.2")
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve_proposer(proposer))
        for number in (1, 2):
            serving = serve_proposer(servicers[number], port, f"127.0.0.{number + 1}")
            await stack.enter_async_context(serving)
        engine, client = await start(proposers=[f"name.test:{port}"])
        links = engine._proposers._links
        await until(lambda: [link.is_open for link in links] == [True, True])
        await client.send(*(predict(number, PROMPT, 50) for number in range(4)))
        await until(lambda: len(servicers[0].opened) == len(servicers[1].opened) == 2)
        addresses[:] = ["127.0.0.2", "127.0.0.3"]
        await until(lambda: [link.is_open for link in links] == [True, True, True])
        await proposer.stop()
        await until(lambda: len(links) == 2)
        assert {link.peer.target for link in links} == {f"127.0.0.2:{port}", f"127.0.0.3:{port}"}
        # One that was never reached goes as well.
        addresses.append("127.0.0.4")
        await until(lambda: len(links) == 3)
        addresses.pop()
        await until(lambda: len(links) == 2)
        worker.may_run.set()
        await client.until_finished(4)
        assert set(servicers[2].opened) == set(servicers[0].opened)
        await until(lambda: not servicers[1].predictions and not servicers[2].predictions)
    assert client.tokens == dict.fromkeys(range(4), truth(PROMPT, 50))


# Which requests are followed.


async def until_linked(engine: Engine) -> None:
    await until(lambda: all(link.is_open for link in engine._proposers._links))


@pytest.mark.parametrize(("follow", "opened"), [("all", ["r1", "r2"]), ("predictions", ["r2"])])
async def test_what_wants_drafts_is_followed_unless_the_server_follows_predictions_alone(
    start: Start, follow: str, opened: list[str], proposer_port: int, proposer: FakeProposerServicer
) -> None:
    options = {"follow": follow} if follow != "all" else {}
    engine, client = await start(proposer_port, **options)
    await until_linked(engine)
    refusing = add(3, PROMPT, max_draft_tokens=0), predict(4)
    refusing[1].add.max_draft_tokens = 0
    await client.ask(add(1, PROMPT), predict(2), *refusing)
    await until(lambda: sorted(proposer.closed) == opened)
    assert sorted(proposer.opened) == opened
    by_id = {opening.request_id: opening for opening in proposer.openings}
    if follow == "all":
        assert from_bytes(by_id["r1"].prompt_token_ids).tolist() == PROMPT
        assert by_id["r1"].predicted_token_ids == b""
    assert client.tokens == {handle: truth(PROMPT) for handle in range(1, 5)}
    assert client.finished[3].num_passes == client.finished[4].num_passes == 20


async def test_what_rests_is_sent_seldom_and_again_where_a_proposer_has_lost_it(
    start: Start, worker: FakeWorkerServicer, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    # Room for outputs that are long enough to come to rest.
    worker.worker = FakeWorker(max_model_len=300, num_blocks=100)
    worker.may_run.clear()
    engine, client = await start(proposer_port, max_plans_in_flight=1)
    await until_linked(engine)
    await client.send(add(1, PROMPT, max_tokens=150))
    await until(lambda: bool(engine.scheduler._state.unsent_windows))
    worker.may_run.set()
    await client.until_finished(1)
    assert engine.scheduler.stats.num_rested == 1
    assert min(number for _, number in proposer.observed[-3:]) >= 8
    assert proposer.num_gaps == 0
    worker.step_seconds = 0.001
    await client.send(add(2, PROMPT, max_tokens=200))
    await client.read_until(lambda: len(client.tokens.get(2, [])) > 60)
    proposer.forget()
    await client.until_finished(2)
    assert proposer.opened == ["r1", "r2", "r2"]
    assert client.tokens == {1: truth(PROMPT, 150), 2: truth(PROMPT, 200)}
