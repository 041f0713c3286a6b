"""Which requests are followed, over real sockets, with a fake worker and a fake proposer."""

from itertools import product
from typing import Any

import pytest

from optimist_common.columns import from_bytes
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.engine.engine import Engine
from tests.scheduler.client import PROMPT, Client, add, ask, truth, until
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_scheduler,
    serve_worker,
)
from tests.scheduler.fake_worker import FakeWorker, next_token

VOCAB_SIZE = 50


@pytest.fixture
def long_worker() -> FakeWorkerServicer:
    """A worker with room for outputs that are long enough to come to rest."""
    return FakeWorkerServicer(FakeWorker(max_model_len=300, num_blocks=100))


async def until_linked(engine: Engine) -> None:
    await until(lambda: all(link.is_open for link in engine._proposers._links))


def repeating_prompt() -> list[int]:
    """Returns a prompt after which the model says its first two tokens."""
    for each in product(range(VOCAB_SIZE), repeat=3):
        prompt = list(each)
        first = next_token(prompt, VOCAB_SIZE)
        if [first, next_token([*prompt, first], VOCAB_SIZE)] == prompt[:2]:
            return prompt
    raise AssertionError("there is none")


@pytest.mark.parametrize(("follow", "opened"), [("all", ["r1", "r2"]), ("predictions", ["r2"])])
async def test_what_wants_drafts_is_followed_unless_the_server_follows_predictions_alone(
    follow: str,
    opened: list[str],
    worker_port: int,
    proposer_port: int,
    proposer: FakeProposerServicer,
) -> None:
    options: dict[str, Any] = {"follow": follow} if follow != "all" else {}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (engine, stub):
        await until_linked(engine)
        commands = [
            add(1, PROMPT),
            add(2, PROMPT, predicted=truth(PROMPT)),
            add(3, PROMPT, max_draft_tokens=0),
            add(4, PROMPT, predicted=truth(PROMPT), max_draft_tokens=0),
        ]
        client = await ask(stub, *commands)
        await until(lambda: sorted(proposer.closed) == opened)
    assert sorted(proposer.opened) == opened
    by_id = {opening.request_id: opening for opening in proposer.openings}
    if follow == "all":
        assert from_bytes(by_id["r1"].prompt_token_ids).tolist() == PROMPT
        assert by_id["r1"].predicted_token_ids == b""
    assert client.tokens == {handle: truth(PROMPT) for handle in range(1, 5)}
    assert client.finished[3].num_passes == client.finished[4].num_passes == 20


async def test_without_a_proposer_nothing_is_opened_later(
    worker_port: int, proposer: FakeProposerServicer
) -> None:
    async with serve_scheduler(worker_port, [1]) as (engine, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT), add(2, PROMPT, predicted=truth(PROMPT)))
        await until(lambda: "r2" in engine._proposers._followed)
        assert "r1" not in engine._proposers._followed
        await client.until_finished(2)


async def test_drafts_from_the_prompt_are_own_text(
    worker: FakeWorkerServicer, worker_port: int, proposer_port: int
) -> None:
    prompt = repeating_prompt()
    worker.may_run.clear()
    options: dict[str, Any] = {"max_plans_in_flight": 1}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (engine, stub):
        await until_linked(engine)
        scheduler = engine.scheduler
        assert isinstance(scheduler, Scheduler)
        client = Client(stub)
        await client.send(add(1, prompt))
        # The window is there before the result of the first pass.
        await until(lambda: bool(scheduler._state.unsent_windows))
        worker.may_run.set()
        await client.until_finished(1)
    assert client.tokens[1] == truth(prompt)
    end = client.finished[1]
    by_source = from_bytes(end.num_tokens_by_source).tolist()
    assert by_source[DraftSource.PREDICTION] == end.accepted_prediction_tokens == 0
    assert by_source[DraftSource.NGRAM] > 0
    assert by_source[DraftSource.TARGET] + by_source[DraftSource.NGRAM] == 20


async def test_what_gains_nothing_is_sent_seldom(
    long_worker: FakeWorkerServicer, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    async with (
        serve_worker(long_worker) as worker_port,
        serve_scheduler(worker_port, [proposer_port]) as (engine, stub),
    ):
        await until_linked(engine)
        client = await ask(stub, add(1, PROMPT, max_tokens=150))
        assert engine.scheduler.stats.num_rested == 1
    assert client.tokens[1] == truth(PROMPT, 150)
    seldom = [number for _, number in proposer.observed[-3:]]
    assert min(seldom) >= 8
    assert proposer.num_gaps == 0


async def test_what_a_proposer_lost_of_a_resting_request_is_sent_again(
    long_worker: FakeWorkerServicer, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    long_worker.step_seconds = 0.001
    async with (
        serve_worker(long_worker) as worker_port,
        serve_scheduler(worker_port, [proposer_port]) as (engine, stub),
    ):
        await until_linked(engine)
        client = Client(stub)
        await client.send(add(1, PROMPT, max_tokens=200))
        await client.read_until(lambda: len(client.tokens.get(1, [])) > 60)
        proposer.forget()
        await client.until_finished(1)
    assert proposer.opened == ["r1", "r1"]
    assert client.tokens[1] == truth(PROMPT, 200)
