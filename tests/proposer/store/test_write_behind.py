"""Writes wait for nobody, are bounded, and end up in the store."""

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY

from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.stored_request import LogWrite
from optimist_proposer.store.store import StoreError, WriteBehind
from tests.proposer.holding import MemoryStore, live, stored_in
from tests.proposer.text import as_text, tokens


async def write(behind: WriteBehind, request: LiveRequest, text: str = "") -> None:
    """Lets a request grow, and writes it."""
    request.fold(request.num_known, tokens(text))
    behind.note(request)
    await behind.stop()


def writer(store: MemoryStore, max_waiting: int = 10) -> WriteBehind:
    return WriteBehind(store, max_waiting, lambda _: None)


def stored_text(store: MemoryStore) -> str:
    stored = stored_in(store)
    assert stored is not None
    return as_text(stored.output)


def dropped() -> float:
    return REGISTRY.get_sample_value("optimist_proposer_redis_writes_dropped_total") or 0


class Store(MemoryStore):
    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure, self.num_writes, self.was_tried = failure, 0, asyncio.Event()

    async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
        self.num_writes += len(writes)
        self.was_tried.set()
        if self.failure:
            raise self.failure
        return await super().write(writes, closed)


async def test_too_many_waiting_drop_the_oldest() -> None:
    store, before = MemoryStore(), dropped()
    behind = writer(store, max_waiting=2)
    for name in "abc":
        behind.note(live(name))
    await behind.stop()
    assert set(store.requests) == {"b", "c"}
    assert dropped() - before == 1


async def test_failed_writes_are_dropped_and_made_up_for_by_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, request, before = Store(StoreError("gone")), live("a"), dropped()
    behind = writer(store)
    for text in "one":
        await write(behind, request, text)
    assert dropped() - before == 3
    assert caplog.text.count("outputs are not shared for now: gone") == 1
    store.failure = None
    await write(behind, request, "\n")
    assert stored_text(store) == "one\n"


async def test_store_that_hangs_does_not_keep_it_from_stopping() -> None:
    class HangingStore(MemoryStore):
        async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
            await asyncio.sleep(3600)
            return []

    behind = writer(HangingStore())
    behind.note(live("a"))
    await behind.stop()


async def test_fault_in_a_write_does_not_end_writing(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(IndexError("broken"))
    behind = writer(store)
    task = asyncio.create_task(behind.run())
    behind.note(live("a"))
    await store.was_tried.wait()
    store.was_tried.clear()
    store.failure = None
    behind.note(live("b"))
    await store.was_tried.wait()
    task.cancel()
    assert set(store.requests) == {"b"}
    assert "IndexError: broken" in caplog.text
