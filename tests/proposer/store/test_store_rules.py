"""The rules of a store, in the script that Redis runs and in the store that other tests use."""

import asyncio
from dataclasses import dataclass
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.stored_request import LogWrite, StoredRequest, WriteKind
from tests.proposer.holding import MemoryStore, prepared, redis_store
from tests.proposer.text import tokens
from tests.redis_server import RedisServer

SOURCES = prepared("ab\nab\n")
OUTPUT = tokens("ab\nXb\nab\nab\nXXX")
MOST = dict.fromkeys("abc", len(OUTPUT))
_prefixes = count()


@dataclass(frozen=True)
class Step:
    """A batch: writes of some requests, and some that are closed."""

    writes: tuple[tuple[str, bytes, WriteKind, int, int], ...]
    closed: tuple[str, ...]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    names = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3))
    writes = []
    for name in names:
        low, high = sorted(draw(st.tuples(st.integers(0, 6), st.integers(0, 6))))
        generation = draw(st.sampled_from([b"first___", b"second__"]))
        writes.append((name, generation, draw(st.sampled_from(WriteKind)), low, high))
    closed = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=1))
    # A request is written or closed in a batch, not both.
    return Step(tuple(writes), tuple(name for name in closed if name not in names))


def write_of(name: str, generation: bytes, kind: WriteKind, low: int, high: int) -> LogWrite:
    request = LiveRequest(name, generation, SOURCES)
    if kind is not WriteKind.APPEND:
        data = StoredRequest(generation, SOURCES.name, OUTPUT[:high]).pack()
        return LogWrite(request, kind, low, high, data)
    return LogWrite(request, kind, low, high, OUTPUT[low:high].tobytes())


@given(st.lists(steps(), max_size=12))
@settings(max_examples=40, deadline=None)
def test_redis_and_memory_keep_the_same_rules(redis_server: RedisServer, batch: list[Step]) -> None:
    async def compare() -> None:
        memory = MemoryStore()
        redis = redis_store(redis_server.url, f"rules-{next(_prefixes)}")
        for step in batch:
            writes = [write_of(*one) for one in step.writes]
            assert await redis.write(writes, step.closed) == await memory.write(writes, step.closed)
            assert await redis.read(MOST) == await memory.read(MOST)
        await redis.stop()

    asyncio.run(compare())
