"""What one replica writes to Redis another reads, whatever other keys hold."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.sources import WrongValueError, unpack_sources
from optimist_proposer.core.stored_request import (
    OTHER_OPENING,
    REFUSED,
    WRONG,
    StoredRequest,
    settle_write,
)
from optimist_proposer.store.redis_store import RedisStore
from tests.proposer.holding import live, prepared, redis_store, written
from tests.proposer.text import as_text, tokens
from tests.redis_server import RedisServer


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_server.url) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
async def store(redis: "Redis", redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    store = redis_store(redis_server.url)
    await store.start()
    yield store
    await store.stop()


async def put(store: RedisStore, *requests: LiveRequest) -> list[int]:
    writes = [written(request) for request in requests]
    answers = await store.write(writes, [])
    for write, answer in zip(writes, answers, strict=True):
        settle_write(write, answer)
    return answers


async def stored(store: RedisStore, request_id: str = "a", most: int = 100) -> StoredRequest | None:
    found = (await store.read({request_id: most})).get(request_id)
    assert not isinstance(found, WrongValueError)
    return found


async def text(store: RedisStore, request_id: str = "a") -> str | None:
    found = await stored(store, request_id)
    if found is None:
        return None
    ((name, value),) = [one async for one in store.read_sources([found.source_name], 1000)]
    assert isinstance(value, bytes)
    unpack_sources(name, value, 3)
    return as_text(found.output)


async def test_late_write_cannot_bring_a_closed_request_back(
    store: RedisStore, redis: "Redis"
) -> None:
    request = live(output="one\n")
    await put(store, request)
    assert await store.write([], ["a"]) == []
    assert await text(store) is None
    request.fold(4, tokens("two\n"))
    assert await put(store, request) == [OTHER_OPENING]
    assert 0 < await redis.pttl("test:{0}:request:a") <= 30_000
    await put(store, live(output="x"))
    assert await text(store) == "x"


async def test_every_key_expires_and_writing_puts_it_off_or_sets_lost_sources_again(
    store: RedisStore, redis: "Redis"
) -> None:
    request = live()
    await put(store, request)
    keys = await redis.keys("*")
    assert len(keys) == 2
    for key in keys:
        assert 0 < await redis.pttl(key) <= 60_000
        await redis.pexpire(key, 0 if b"sources" in key else 5_000)
    # As if a quarter of the time had passed.
    request.prepared.refreshed_at -= 16
    request.fold(0, tokens("one"))
    await put(store, request)
    for key in keys:
        assert await redis.pttl(key) > 5_000
    assert await text(store) == "one"


async def test_step_takes_one_round_trip(store: RedisStore, redis: "Redis") -> None:
    sources = prepared("".join(f"line {number}\n" for number in range(200)))
    requests = [live(f"{number}", sources=sources) for number in range(64)]
    await put(store, *requests)
    for request in requests:
        request.fold(0, sources.sources.token_ids[:20])
    before = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    await put(store, *requests)
    after = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert after - before == 1
    # A script that Redis forgot is sent again.
    await redis.script_flush()
    requests[0].fold(20, tokens("one"))
    assert await put(store, requests[0]) == [23]


async def test_wrong_values_cost_their_requests_alone(store: RedisStore, redis: "Redis") -> None:
    names = ["right", "format", "short", "list", "long", "many"]
    requests = [live(name, "one\n") for name in names]
    await put(store, *requests)
    keys = {name: f"test:{{0}}:request:{name}" for name in names}
    await redis.setrange(keys["format"], 0, b"\xff")
    await redis.set(keys["short"], b"\x01")
    await redis.delete(keys["list"])
    await redis.rpush(keys["list"], "x")
    await redis.append(keys["long"], bytes(1_000_000))
    found = await store.read(dict.fromkeys(names, 4) | {"many": 3})
    assert {name: str(value) for name, value in found.items() if name != "right"} == {
        "format": "packed request has format 255, not 2",
        "short": "not a packed request",
        "list": "no string",
        "long": "more than 53 bytes",
        "many": "more than 49 bytes",
    }
    assert isinstance(found["right"], StoredRequest)
    for request in requests:
        request.fold(4, tokens("two\n"))
    # Another format is another opening's, as far as a write knows.
    assert await put(store, *requests) == [8, OTHER_OPENING, WRONG, WRONG, WRONG, 8]
    whole = [written(one, is_lost=True) for one in requests if one.request_id != "format"]
    assert await store.write(whole, []) == [8] * len(whole)
    assert {await text(store, one.request.request_id) for one in whole} == {"one\ntwo\n"}


async def test_wrong_sources_cost_nobody_else_anything(store: RedisStore, redis: "Redis") -> None:
    texts = ["right", "list", "long"]
    await put(store, *(live(one, sources=prepared(one)) for one in texts))
    names = [prepared(one).name for one in texts]
    keys = [store._sources_key(name) for name in names]
    await redis.delete(keys[1])
    await redis.rpush(keys[1], "x")
    await redis.append(keys[2], bytes(100_000))
    found = dict([one async for one in store.read_sources(names, 100)])
    assert [str(found[name]) for name in names[1:]] == ["no string", "too long"]
    assert isinstance(found[names[0]], bytes)


async def test_user_who_may_use_keys_of_the_prefix_alone(
    redis: "Redis", redis_server: RedisServer
) -> None:
    await redis.acl_setuser(
        "confined", enabled=True, passwords=["+secret"], keys=["test:*"], categories=["+@all"]
    )
    store = redis_store(f"redis://confined:secret@{redis_server.address}/0")
    try:
        await store.start()
        assert await put(store, live(output="one\n")) == [4]
        assert await text(store) == "one\n"
    finally:
        await store.stop()
        await redis.acl_deluser("confined")


async def test_redis_that_refuses_to_write_is_read_on(
    store: RedisStore, redis: "Redis", caplog: pytest.LogCaptureFixture
) -> None:
    await put(store, live(output="one\n"))
    await redis.config_set("maxmemory", "1")
    try:
        for _ in range(2):
            assert await put(store, live("b")) == [REFUSED]
        assert await text(store) == "one\n"
        assert caplog.text.count("Redis refuses a command: OutOfMemoryError") == 1
    finally:
        await redis.config_set("maxmemory", "0")
    assert await put(store, live("b", "x")) == [1]
    assert await text(store, "b") == "x"
