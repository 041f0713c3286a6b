import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from optimist_common.errors import SetupError
from optimist_proposer.batch import UNKNOWN, Answer, BatchProposer, Observation, Open
from optimist_proposer.core.cursor import VERSION_BYTES, Cursor
from optimist_proposer.redis_store import RedisStore
from optimist_proposer.store import GENERATION_BYTES, Opening, StoreError, Update
from tests.proposer.stores import LINE, redis_store
from tests.proposer.text import as_text, tokens
from tests.redis_server import RedisServer

POEM = "one\ntwo\nthree\n"


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_server.url) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
async def replicas(
    redis: "Redis", redis_server: RedisServer
) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    first, second = redis_store(redis_server.url), redis_store(redis_server.url)
    await first.start()
    yield first, second
    await first.stop()
    await second.stop()


def opening(request_id: str = "a", text: str = POEM) -> Opening:
    return Opening(request_id, LINE.prepare(tokens(text)), Cursor())


async def test_another_replica_reads_what_one_opened(
    replicas: tuple[RedisStore, RedisStore],
) -> None:
    await replicas[0].open([opening()])
    (absent, snapshot) = await replicas[1].load(["b", "a"])
    assert absent is None
    assert snapshot is not None
    assert as_text(snapshot.prediction.token_ids) == POEM
    assert snapshot.cursor == Cursor()


async def test_only_one_of_two_writers_moves_the_cursor(
    replicas: tuple[RedisStore, RedisStore],
) -> None:
    await replicas[0].open([opening("a"), opening("b")])
    updates = []
    for replica, text in zip(replicas, ("one", "ONE"), strict=True):
        (snapshot,) = await replica.load(["a"])
        assert snapshot is not None
        LINE.observe(snapshot.prediction, snapshot.cursor, tokens(text))
        updates.append(Update("a", snapshot.version, snapshot.cursor))
    (other,) = await replicas[1].load(["b"])
    assert other is not None
    assert await replicas[0].save(updates[:1]) == [True]
    unharmed = Update("b", other.version, other.cursor)
    assert await replicas[1].save([updates[1], unharmed]) == [False, True]
    (snapshot,) = await replicas[1].load(["a"])
    assert snapshot is not None
    assert snapshot.cursor == updates[0].cursor


async def test_writer_of_an_earlier_opening_moves_nothing(
    replicas: tuple[RedisStore, RedisStore],
) -> None:
    await replicas[0].open([opening()])
    (stale,) = await replicas[0].load(["a"])
    assert stale is not None
    await replicas[1].open([opening(text="six\n")])
    assert await replicas[0].save([Update("a", stale.version, stale.cursor)]) == [False]
    (snapshot,) = await replicas[0].load(["a"])
    assert snapshot is not None
    assert as_text(snapshot.prediction.token_ids) == "six\n"


async def test_writer_cannot_bring_a_closed_request_back(
    replicas: tuple[RedisStore, RedisStore], redis: "Redis"
) -> None:
    await replicas[0].open([opening()])
    (stale,) = await replicas[0].load(["a"])
    assert stale is not None
    await replicas[1].close(["a"])
    assert await redis.keys("*") == []
    assert await replicas[0].save([Update("a", stale.version, stale.cursor)]) == [False]
    assert await replicas[0].load(["a"]) == [None]


async def test_every_key_expires_and_observing_puts_it_off(
    replicas: tuple[RedisStore, RedisStore], redis: "Redis"
) -> None:
    await replicas[0].open([opening()])
    keys = sorted(await redis.keys("*"))
    assert keys == [b"test:cursor:a", b"test:prediction:a"]
    for key in keys:
        assert 0 < await redis.pttl(key) <= 60_000
        await redis.pexpire(key, 5_000)
    (snapshot,) = await replicas[0].load(["a"])
    assert snapshot is not None
    assert await replicas[0].save([Update("a", snapshot.version, snapshot.cursor)]) == [True]
    for key in keys:
        assert await redis.pttl(key) > 5_000


async def test_state_of_another_format_is_unknown(
    replicas: tuple[RedisStore, RedisStore], redis: "Redis"
) -> None:
    await replicas[0].open([opening()])
    await redis.setrange("test:cursor:a", GENERATION_BYTES + VERSION_BYTES, b"\xff")
    assert await replicas[0].load(["a"]) == [None]


async def test_lost_prediction_is_an_unknown_request(
    replicas: tuple[RedisStore, RedisStore], redis: "Redis"
) -> None:
    await replicas[0].open([opening()])
    await redis.delete("test:prediction:a")
    assert await replicas[1].load(["a"]) == [None]
    assert await replicas[0].load(["a"]) != [None]


async def test_prediction_no_longer_kept_is_read_again(
    redis: "Redis", redis_server: RedisServer
) -> None:
    store = redis_store(redis_server.url, cache_bytes=1)
    await store.open([opening("a"), opening("b", "six\n")])
    snapshots = await store.load(["a", "b", "a"])
    texts = [as_text(item.prediction.token_ids) for item in snapshots if item is not None]
    assert texts == [POEM, "six\n", POEM]
    await store.stop()


async def test_unreachable_redis_at_the_start_says_so_in_one_line() -> None:
    store = redis_store("redis://user:secret@127.0.0.1:1/0")
    with pytest.raises(SetupError, match=r"cannot reach Redis at redis://127\.0\.0\.1:1/0") as info:
        await store.start()
    assert "\n" not in str(info.value)
    assert "secret" not in str(info.value)
    await store.stop()


def test_url_that_is_none_is_a_setup_error() -> None:
    with pytest.raises(SetupError, match="--store"):
        redis_store("http://127.0.0.1")


async def test_killed_redis_gives_gaps_and_comes_back_empty(own_redis_server: RedisServer) -> None:
    store = redis_store(own_redis_server.url)
    proposer = BatchProposer(LINE, store, window_tokens=64, max_tokens=100)

    async def observe() -> Answer:
        return await proposer.apply([], [Observation("a", 0, tokens("X"))], [])

    await proposer.apply([Open("a", tokens(POEM))], [], [])
    own_redis_server.kill()
    assert (await observe()).gaps == {"a": UNKNOWN}
    with pytest.raises(StoreError, match="a moment ago"):
        await store.load(["a"])
    assert (await proposer.apply([Open("a", tokens(POEM))], [], ["a"])) == Answer()
    own_redis_server.start()
    deadline = time.monotonic() + 10
    while not (await proposer.apply([Open("a", tokens(POEM))], [], [])).windows:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert "a" in (await observe()).windows
    own_redis_server.kill()
    own_redis_server.start()
    while (await observe()).gaps != {"a": UNKNOWN}:
        assert time.monotonic() < deadline
    await store.stop()
