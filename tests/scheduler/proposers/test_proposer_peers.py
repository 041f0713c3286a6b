"""Proposers that come and go by name, or say that they take no more requests."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from tests.scheduler.client import PROMPT, Client, add, truth, until
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_fleet,
    serve_proposer,
    serve_scheduler,
)

PREDICTED = truth(PROMPT, 50)


async def test_requests_leave_a_proposer_that_takes_no_more(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.step_seconds = 0.01
    first, second = FakeProposerServicer(), FakeProposerServicer()
    async with (
        serve_proposer(first) as one,
        serve_proposer(second) as two,
        serve_scheduler(worker_port, [one, two]) as (_, stub),
    ):
        client = Client(stub)
        ids = {handle: f"r{handle}" for handle in range(1, 5)}
        await client.send(
            *(add(handle, PROMPT, max_tokens=50, predicted=PREDICTED) for handle in ids)
        )
        await until(lambda: len(first.opened) == len(second.opened) == 2)
        theirs = list(first.opened)
        assert first.server is not None
        await first.server.set_serving(serving=False)
        # At once, not only when there are tokens to tell.
        worker.may_run.clear()
        await until(lambda: set(second.opened) == set(ids.values()))
        assert second.num_gaps == 0
        for request_id in theirs:
            assert second.predictions[request_id] == PREDICTED
        await client.send(add(5, PROMPT, max_tokens=50, predicted=PREDICTED))
        await until(lambda: "r5" in second.opened)
        worker.may_run.set()
        await client.until_finished(5)
        await until(lambda: second.predictions == {})
        assert first.opened == theirs
    assert set(map(tuple, client.tokens.values())) == {tuple(PREDICTED)}


async def test_a_proposer_that_takes_no_more_is_better_than_none(
    worker: FakeWorkerServicer, worker_port: int, proposer: FakeProposerServicer, proposer_port: int
) -> None:
    assert proposer.server is not None
    await proposer.server.set_serving(serving=False)
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        client = Client(stub)
        await client.send(add(1, PROMPT, predicted=truth(PROMPT)))
        await client.read_until(lambda: 1 in client.finished)
    assert client.finished[1].accepted_prediction_tokens > 10


async def test_proposers_come_and_go_by_name(
    worker: FakeWorkerServicer, worker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["127.0.0.1", "127.0.0.2"]

    async def resolve(host: str) -> Sequence[str]:
        return addresses

    monkeypatch.setattr("optimist_common.network.endpoints.resolve_host", resolve)
    monkeypatch.setattr("optimist_common.network.endpoints.RESOLVE_SECONDS", 0.05)
    worker.may_run.clear()
    servicers = [FakeProposerServicer() for _ in range(3)]
    async with AsyncExitStack() as stack:
        serving = [await stack.enter_async_context(AsyncExitStack()) for _ in servicers]
        port = await serving[0].enter_async_context(serve_proposer(servicers[0]))
        await serving[1].enter_async_context(serve_proposer(servicers[1], port, "127.0.0.2"))
        fleet, stub = await stack.enter_async_context(
            serve_fleet([worker_port], [], proposers=[f"proposers.test:{port}"])
        )
        links = fleet._proposers._links
        await until(lambda: [link.is_open for link in links] == [True, True])
        client = Client(stub)
        await client.send(
            *(add(number, PROMPT, max_tokens=50, predicted=PREDICTED) for number in range(4))
        )
        await until(lambda: len(servicers[0].opened) == len(servicers[1].opened) == 2)
        await serving[2].enter_async_context(serve_proposer(servicers[2], port, "127.0.0.3"))
        addresses[:] = ["127.0.0.2", "127.0.0.3"]
        await until(lambda: [link.is_open for link in links] == [True, True, True])
        await serving[0].aclose()
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
    assert set(map(tuple, client.tokens.values())) == {tuple(PREDICTED)}
