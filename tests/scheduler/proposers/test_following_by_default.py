"""Which requests are followed, over real sockets, with a fake worker and a fake proposer."""

import pytest

from optimist_common.columns import from_bytes
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.engine.engine import Engine
from tests.scheduler.client import PROMPT, add, predict, truth, until
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeProposerServicer, FakeWorkerServicer
from tests.scheduler.fake_worker import FakeWorker


async def until_linked(engine: Engine) -> None:
    await until(lambda: all(link.is_open for link in engine._proposers._links))


def has_window(engine: Engine) -> bool:
    """Whether there is a window before the result of the first pass."""
    assert isinstance(engine.scheduler, Scheduler)
    return bool(engine.scheduler._state.unsent_windows)


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


async def test_without_a_proposer_nothing_is_opened_later(start: Start) -> None:
    engine, client = await start(1)
    await client.send(add(1, PROMPT), predict(2))
    await until(lambda: "r2" in engine._proposers._followed)
    assert "r1" not in engine._proposers._followed
    await client.until_finished(2)


async def test_what_rests_is_sent_seldom_and_again_where_a_proposer_has_lost_it(
    start: Start, worker: FakeWorkerServicer, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    # Room for outputs that are long enough to come to rest.
    worker.worker = FakeWorker(max_model_len=300, num_blocks=100)
    worker.may_run.clear()
    engine, client = await start(proposer_port, max_plans_in_flight=1)
    await until_linked(engine)
    await client.send(add(1, PROMPT, max_tokens=150))
    await until(lambda: has_window(engine))
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
