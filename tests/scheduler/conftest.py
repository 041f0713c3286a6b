from collections.abc import AsyncIterator

import pytest

from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_proposer,
    serve_worker,
)
from tests.scheduler.fake_worker import FakeWorker


@pytest.fixture
def worker() -> FakeWorkerServicer:
    return FakeWorkerServicer(FakeWorker(eos_token_ids=(2,)))


@pytest.fixture
def proposer() -> FakeProposerServicer:
    return FakeProposerServicer()


@pytest.fixture
async def worker_port(worker: FakeWorkerServicer) -> AsyncIterator[int]:
    async with serve_worker(worker) as port:
        yield port


@pytest.fixture
async def proposer_port(proposer: FakeProposerServicer) -> AsyncIterator[int]:
    async with serve_proposer(proposer) as port:
        yield port


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets plans be sent ahead of results however unlikely it is that all drafts are accepted."""
    monkeypatch.setattr("optimist_scheduler.core.schedule.apply.LEAST_CHANCE", 0.0)
