import pytest

from optimist_proposer.core.cursor import Cursor
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.memory import MemoryStore
from optimist_proposer.store import Opening
from tests.proposer.text import NEWLINES, tokens

LINE = LineAlgorithm(NEWLINES)


def opening(request_id: str, length: int = 3) -> Opening:
    return Opening(request_id, LINE.prepare(tokens("x" * length)), Cursor())


async def test_forgets_the_requests_used_least_recently(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(max_requests=2, max_bytes=1_000_000)
    await store.open([opening("a"), opening("b")])
    await store.load(["a"])
    await store.open([opening("c")])
    assert [snapshot is not None for snapshot in await store.load(["a", "b", "c"])] == [
        True,
        False,
        True,
    ]
    assert "1 requests forgotten" in caplog.text


async def test_long_predictions_count_by_their_bytes() -> None:
    store = MemoryStore(max_requests=100, max_bytes=20_000)
    await store.open([opening(name, length=1000) for name in "abcd"])
    held = [snapshot is not None for snapshot in await store.load(list("abcd"))]
    assert held == [False, False, True, True]


async def test_changing_a_snapshot_changes_nothing_in_the_store() -> None:
    store = MemoryStore(max_requests=2, max_bytes=1_000_000)
    await store.open([opening("a")])
    (first,) = await store.load(["a"])
    assert first is not None
    LINE.observe(first.prediction, first.cursor, tokens("y"))
    (second,) = await store.load(["a"])
    assert second is not None
    assert second.cursor == Cursor()
