from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from optimist_scheduler.engine.engine import Engine
from tests.scheduler.client import Client
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_proposer,
    serve_scheduler,
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
async def proposers() -> AsyncIterator[list[FakeProposerServicer]]:
    """Three that are served, each with a memory of its own."""
    servicers = [FakeProposerServicer() for _ in range(3)]
    async with AsyncExitStack() as stack:
        for each in servicers:
            await stack.enter_async_context(serve_proposer(each))
        yield servicers


Start = Callable[..., Awaitable[tuple[Engine, Client]]]


@pytest.fixture
async def start(worker_port: int) -> AsyncIterator[Start]:
    """Starts a scheduler of the worker, given ports of proposers and settings."""
    async with AsyncExitStack() as stack:

        async def begin(*proposer_ports: int, **values: Any) -> tuple[Engine, Client]:
            serving = serve_scheduler(worker_port, list(proposer_ports), **values)
            engine, stub = await stack.enter_async_context(serving)
            return engine, Client(stub)

        yield begin


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of name.test; it is looked up again and again."""
    addresses = ["127.0.0.1"]

    async def resolve(host: str) -> list[str]:
        assert host == "name.test"
        return addresses

    monkeypatch.setattr("optimist_common.network.endpoints.resolve_host", resolve)
    monkeypatch.setattr("optimist_common.network.endpoints.RESOLVE_SECONDS", 0.05)
    return addresses


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets plans be sent ahead of results however unlikely it is that all drafts are accepted."""
    monkeypatch.setattr("optimist_scheduler.core.schedule.apply.LEAST_CHANCE", 0.0)
