"""Predictions over real sockets, with a fake worker and a fake proposer."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes, to_bytes
from tests.scheduler.client import (
    MODES,
    PROMPT,
    VOCAB_SIZE,
    Client,
    add,
    ask,
    get_stats,
    truth,
    until,
)
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_proposer,
    serve_scheduler,
)


@pytest.mark.parametrize("mode", MODES)
async def test_predictions_change_no_text_and_right_ones_save_passes(
    mode: str, worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    prompts = {handle: [handle, 7, handle] for handle in range(6)}
    predicted = {handle: truth(prompt) for handle, prompt in prompts.items()}
    for handle in (4, 5):
        predicted[handle][6:] = [(token + 1) % VOCAB_SIZE for token in predicted[handle][6:]]
    options: dict[str, Any] = {"proposer_wait_ms": 2000, **MODES[mode]}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (_, stub):
        commands = [
            add(handle, prompt, predicted=predicted[handle]) for handle, prompt in prompts.items()
        ]
        client = await ask(stub, *commands)
        alone = await ask(stub, add(9, PROMPT, predicted=truth(PROMPT)))
        await until(lambda: len(proposer.closed) == 7)
    assert client.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
    for handle, end in client.finished.items():
        assert end.num_passes + end.accepted_prediction_tokens == 20
        if handle < 4:
            assert end.accepted_prediction_tokens > 0
        else:
            assert end.accepted_prediction_tokens <= 6
            assert end.rejected_prediction_tokens <= 14
    assert alone.tokens == {9: truth(PROMPT)}
    assert alone.finished[9].accepted_prediction_tokens >= 14
    assert alone.finished[9].rejected_prediction_tokens == 0


async def test_a_proposer_that_breaks_mid_answer_costs_no_text(
    worker: FakeWorkerServicer, worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.02
    proposer.break_at, proposer.window_tokens = {2}, 2
    async with serve_scheduler(worker_port, [proposer_port]) as (_, stub):
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert client.tokens[1] == truth(PROMPT)
    assert client.finished[1].reason == scheduler_pb2.FINISH_REASON_LENGTH


async def test_a_proposer_that_lost_its_memory_is_sent_everything_again(
    worker: FakeWorkerServicer, worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.01
    proposer.window_tokens = 1
    prompt, predicted = [9, 9], truth([9, 9], 40)
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        client = Client(stub)
        await client.send(add(1, prompt, predicted=predicted, max_tokens=40))
        await client.read_until(lambda: bool(client.tokens))
        proposer.forget()
        await client.until_finished(1)
        client.close()
    assert client.tokens[1] == predicted
    assert proposer.num_gaps == 1
    assert client.finished[1].accepted_prediction_tokens >= 10


async def test_a_silent_proposer_is_waited_for_once_and_an_unreachable_one_never(
    worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    async with serve_scheduler(worker_port, [1], proposer_wait_ms=3_600_000) as (_, stub):
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert client.tokens[1] == truth(PROMPT)
    proposer.delay_seconds = 3600
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=200) as (_, stub):
        started = asyncio.get_running_loop().time()
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        # Twenty waits would take four seconds; how fast the rest is does not matter.
        assert asyncio.get_running_loop().time() - started < 4
    assert client.tokens[1] == truth(PROMPT)
    assert client.finished[1].num_passes == 20


async def test_a_proposer_that_was_away_is_used_again(
    worker: FakeWorkerServicer, worker_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.02
    async with AsyncExitStack() as stack:
        async with serve_proposer(proposer) as port:
            scheduler = serve_scheduler(worker_port, [port], proposer_wait_ms=2000)
            _, stub = await stack.enter_async_context(scheduler)
            await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        assert proposer.num_batches > 0
        other = FakeProposerServicer()
        async with serve_proposer(other, port):
            client = Client(stub)
            await client.send(add(2, PROMPT, max_tokens=50, predicted=truth(PROMPT, 50)))
            await client.until_finished(1)
            client.close()
            # The channel may have needed longer than that request to find the port again.
            for handle in range(3, 20):
                if other.num_batches:
                    break
                await ask(stub, add(handle, PROMPT, predicted=truth(PROMPT)))
    assert other.num_batches > 0
    assert client.tokens[2] == truth(PROMPT, 50)


async def test_several_proposers_take_turns_and_fill_each_others_gaps(
    worker: FakeWorkerServicer, worker_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.005
    # Memory of their own: each batch misses what the other was sent.
    second = FakeProposerServicer()
    async with (
        serve_proposer(proposer) as one,
        serve_proposer(second) as two,
        serve_scheduler(worker_port, [one, two], proposer_affinity=False) as (_, stub),
    ):
        client = await ask(stub, add(1, PROMPT, max_tokens=40, predicted=truth(PROMPT, 40)))
    assert client.tokens[1] == truth(PROMPT, 40)
    assert min(proposer.num_batches, second.num_batches) > 0
    assert proposer.num_gaps + second.num_gaps > 0


@pytest.mark.parametrize("num_proposers", [2, 3])
async def test_a_request_stays_with_the_proposer_that_opened_it(
    worker: FakeWorkerServicer, worker_port: int, num_proposers: int
) -> None:
    proposers = [FakeProposerServicer() for _ in range(num_proposers)]
    worker.step_seconds = 0.002
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve_proposer(each)) for each in proposers]
        _, stub = await stack.enter_async_context(serve_scheduler(worker_port, ports))
        prompts = {handle: [handle, 7] for handle in range(1, 7)}
        client = await ask(
            stub,
            *(add(handle, prompt, predicted=truth(prompt)) for handle, prompt in prompts.items()),
        )
        await until(lambda: sum(len(each.closed) for each in proposers) == 6)
    assert client.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
    # Nothing had to be sent again, and each was sent the ends of its own.
    assert [each.num_gaps for each in proposers] == [0] * num_proposers
    for each in proposers:
        assert each.opened == sorted(each.closed)


async def test_requests_move_to_another_proposer_when_theirs_is_gone(
    worker: FakeWorkerServicer, worker_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.01
    second = FakeProposerServicer()
    predicted = truth(PROMPT, 50)
    async with serve_proposer(second) as two, AsyncExitStack() as stack:
        one = await stack.enter_async_context(serve_proposer(proposer))
        async with serve_scheduler(worker_port, [one, two]) as (_, stub):
            client = Client(stub)
            for handle in (1, 2, 3):
                await client.send(add(handle, PROMPT, max_tokens=50, predicted=predicted))
            await client.read_until(lambda: len(client.tokens) == 3)
            await stack.aclose()
            await client.until_finished(3)
            client.close()
    assert all(tokens == predicted for tokens in client.tokens.values())
    assert set(second.opened) == {"r1", "r2", "r3"}


async def test_a_refused_request_is_followed_no_longer(
    worker_port: int,
    proposer_port: int,
    proposer: FakeProposerServicer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer.refused = {"r1"}
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        client = await ask(
            stub, add(1, PROMPT, predicted=truth(PROMPT)), add(2, [7], predicted=truth([7]))
        )
    assert client.tokens == {1: truth(PROMPT), 2: truth([7])}
    assert client.finished[1].num_passes == 20
    assert client.finished[2].accepted_prediction_tokens > 0
    lines = [record.message for record in caplog.records if "r1" in record.message]
    assert lines == ["no drafts from proposers for request r1: too long for the test"]


async def test_an_opening_says_all_there_is_to_know(
    worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    request = add(1, PROMPT, predicted=[*truth(PROMPT), 4, 5])
    request.add.num_predicted_tokens = to_bytes([20, 2])
    request.add.cache_salt = "tenant"
    options: dict[str, Any] = {"proposer_prompt_tokens": 2, "proposer_wait_ms": 2000}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (_, stub):
        await ask(stub, request)
    (opening,) = proposer.openings
    assert from_bytes(opening.predicted_token_ids).tolist() == [*truth(PROMPT), 4, 5]
    assert from_bytes(opening.num_predicted_tokens).tolist() == [20, 2]
    assert from_bytes(opening.prompt_token_ids).tolist() == PROMPT[-2:]
    assert opening.tenant == "tenant"


async def test_a_wait_is_not_worth_more_than_it_saves(worker_port: int) -> None:
    proposer = FakeProposerServicer()
    proposer.delay_seconds = 0.02
    options: dict[str, Any] = {"proposer_wait_ms": 500, "proposer_wait": "paying"}
    async with (
        serve_proposer(proposer) as port,
        serve_scheduler(worker_port, [port], **options) as (engine, stub),
    ):
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        # Passes take some microseconds. Before the first there is nothing else to do, unless the
        # proposer's answer is there by then.
        assert engine._proposers.waits.num_waits <= 1
    assert client.tokens[1] == truth(PROMPT)


async def test_windows_that_are_too_short_for_the_drafts_are_mentioned_once(
    worker_port: int, proposer_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"proposer_wait_ms": 2000, "num_speculative_tokens": 12}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (_, stub):
        await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    message = (
        "num_speculative_tokens=12: a proposer's window_tokens=8 cuts the drafts of windows to 8"
    )
    assert [record.message for record in caplog.records].count(message) == 1


async def test_what_waits_have_cost_is_reported(
    worker: FakeWorkerServicer, worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    proposer.delay_seconds, proposer.window_tokens = 0.01, 4
    options: dict[str, Any] = {"proposer_wait_ms": 2000, "max_plans_in_flight": 1}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (_, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT, predicted=truth(PROMPT)))
        await client.until_finished(1)
        stats = (await client.reply(get_stats())).stats
        client.close()
    # A window of four brings five tokens, and each is waited for once the proposer is there.
    assert stats.num_plans >= stats.num_window_waits == stats.num_idle_window_waits >= 3
    assert stats.num_late_window_waits == 0
    assert stats.window_wait_us >= stats.num_window_waits * 9000
