"""Predictions over real sockets, with a fake worker and a fake proposer."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.scheduler.client import MODES, PROMPT, VOCAB_SIZE, Client, add, ask, truth, until
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_proposer,
    serve_scheduler,
)


@pytest.mark.parametrize("mode", MODES)
async def test_a_right_prediction_changes_no_text(
    mode: str, worker_port: int, proposer_port: int
) -> None:
    options: dict[str, Any] = {"proposer_wait_ms": 2000, **MODES[mode]}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (_, stub):
        prompts = {handle: [handle, 7, handle] for handle in range(6)}
        client = await ask(
            stub,
            *(add(handle, prompt, predicted=truth(prompt)) for handle, prompt in prompts.items()),
        )
    assert client.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
    for end in client.finished.values():
        assert end.accepted_prediction_tokens > 0
        assert end.num_passes + end.accepted_prediction_tokens == 20


async def test_a_right_prediction_saves_passes(
    worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        await until(lambda: proposer.closed == ["r1"])
    end = client.finished[1]
    assert client.tokens[1] == truth(PROMPT)
    assert end.accepted_prediction_tokens >= 14
    assert end.rejected_prediction_tokens == 0
    assert end.num_passes + end.accepted_prediction_tokens == 20


@pytest.mark.parametrize("mode", MODES)
async def test_a_wrong_prediction_changes_no_text(
    mode: str, worker_port: int, proposer_port: int
) -> None:
    predicted = truth(PROMPT)
    predicted[6:] = [(token + 1) % VOCAB_SIZE for token in predicted[6:]]
    options: dict[str, Any] = {"proposer_wait_ms": 2000, **MODES[mode]}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (_, stub):
        client = await ask(stub, add(1, PROMPT, predicted=predicted))
    end = client.finished[1]
    assert client.tokens[1] == truth(PROMPT)
    assert end.num_passes + end.accepted_prediction_tokens == 20
    assert end.accepted_prediction_tokens <= 6
    assert end.rejected_prediction_tokens <= 14


async def test_a_proposer_that_breaks_mid_answer_costs_no_text(
    worker: FakeWorkerServicer,
    worker_port: int,
    proposer_port: int,
    proposer: FakeProposerServicer,
) -> None:
    worker.step_seconds = 0.02
    proposer.break_at, proposer.window_tokens = {2}, 2
    async with serve_scheduler(worker_port, [proposer_port]) as (_, stub):
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert client.tokens[1] == truth(PROMPT)
    assert client.finished[1].reason == scheduler_pb2.FINISH_REASON_LENGTH


async def test_a_proposer_that_lost_its_memory_is_told_everything_again(
    worker: FakeWorkerServicer,
    worker_port: int,
    proposer_port: int,
    proposer: FakeProposerServicer,
) -> None:
    worker.step_seconds = 0.01
    proposer.window_tokens = 1
    prompt, predicted = [9, 9], truth([9, 9], 40)
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        client = Client(stub)
        await client.send(add(1, prompt, predicted=predicted, max_tokens=40))
        await client.read_until(lambda: bool(client.tokens))
        proposer.forget()
        await client.read_until(lambda: len(client.finished) == 1)
        client.close()
    assert client.tokens[1] == predicted
    assert proposer.num_gaps == 1
    assert client.finished[1].accepted_prediction_tokens >= 10


async def test_a_silent_proposer_is_waited_for_once(
    worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    proposer.delay_seconds = 3600
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=200) as (_, stub):
        started = asyncio.get_running_loop().time()
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        # Twenty waits would take four seconds; how fast the rest is does not matter.
        assert asyncio.get_running_loop().time() - started < 4
    assert client.tokens[1] == truth(PROMPT)
    assert client.finished[1].num_passes == 20


async def test_an_unreachable_proposer_is_not_waited_for(worker_port: int) -> None:
    async with serve_scheduler(worker_port, [1], proposer_wait_ms=3_600_000) as (_, stub):
        client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert client.tokens[1] == truth(PROMPT)


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
            await client.read_until(lambda: len(client.finished) == 1)
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
    # Memory of their own: each batch misses what the other was told.
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
