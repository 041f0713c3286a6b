from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from optimist_bench.replicas.redis_server import RedisServer
from optimist_common.errors import SetupError
from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.output_log import decode_output
from optimist_proposer.core.sources import unpack_sources
from optimist_proposer.core.stored_request import OTHER_OPENING, settle_write
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import StoreError
from tests.proposer.holding import POEM, live, prepared, redis_store, written
from tests.proposer.text import as_text, tokens


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


async def text(store: RedisStore, request_id: str = "a") -> str | None:
    (stored,) = await store.read([request_id])
    if stored is None:
        return None
    (value,) = await store.read_sources([stored.source_name])
    assert value is not None
    output = decode_output(unpack_sources(value), 0, stored.log)
    assert len(output) == stored.num_known
    return as_text(output)


async def test_what_one_writes_another_reads(store: RedisStore, redis_server: RedisServer) -> None:
    request = live(output="one\n")
    assert await put(store, request) == [4]
    request.fold(4, tokens("TWO\nthree\n"))
    assert await put(store, request, live("b", "x")) == [14, 1]
    other = redis_store(redis_server.url)
    assert await text(other) == "one\nTWO\nthree\n"
    assert await text(other, "b") == "x"
    assert await text(other, "absent") is None
    (absent,) = await other.read_sources([prepared("absent").name])
    assert absent is None
    await other.stop()


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


async def test_sources_are_stored_once_for_a_tenant(store: RedisStore, redis: "Redis") -> None:
    shared = prepared(POEM, tenant="A")
    await put(store, live("a", sources=shared), live("b", sources=shared))
    await put(store, live("c", sources=prepared(POEM, tenant="B")))
    keys = await redis.keys("test:sources:*")
    assert len(keys) == 2
    assert len({str(key).split(":")[2] for key in keys}) == 2


@pytest.mark.parametrize("is_lost", [False, True])
async def test_every_key_expires_and_writing_puts_it_off_or_sets_lost_sources_again(
    store: RedisStore, redis: "Redis", is_lost: bool
) -> None:
    request = live()
    await put(store, request)
    keys = await redis.keys("*")
    assert len(keys) == 2
    for key in keys:
        assert 0 < await redis.pttl(key) <= 60_000
        await redis.pexpire(key, 0 if is_lost and b"sources" in key else 5_000)
    # As if a quarter of the time had passed.
    request.prepared.refreshed_at -= 16
    request.fold(0, tokens("one"))
    await put(store, request)
    for key in keys:
        assert await redis.pttl(key) > 5_000
    assert await text(store) == "one"


async def test_step_takes_one_round_trip_and_a_few_bytes(store: RedisStore, redis: "Redis") -> None:
    sources = prepared("".join(f"line {number}\n" for number in range(200)))
    requests = [live(f"{number}", sources=sources) for number in range(64)]
    await put(store, *requests)
    sizes = []
    for request in requests:
        request.fold(0, sources.sources.token_ids[:20])
    before = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    await put(store, *requests)
    after = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert after - before == 1
    for request in requests:
        sizes.append(await redis.strlen(f"test:{{0}}:request:{request.request_id}"))
    assert max(sizes) <= 37 + 3


async def test_script_that_redis_forgot_is_sent_again(store: RedisStore, redis: "Redis") -> None:
    request = live()
    await put(store, request)
    await redis.script_flush()
    request.fold(0, tokens("one"))
    assert await put(store, request) == [3]


async def test_value_of_another_format_is_unknown(
    store: RedisStore, redis: "Redis", caplog: pytest.LogCaptureFixture
) -> None:
    request = live()
    await put(store, request)
    await redis.setrange("test:{0}:request:a", 0, b"\xff")
    assert await store.read(["a"]) == [None]
    assert "has format 255" in caplog.text


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


async def test_redis_that_refuses_to_write_is_a_failure(store: RedisStore, redis: "Redis") -> None:
    await put(store, live())
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreError, match=r"OOM|maxmemory"):
            await put(store, live("b"))
    finally:
        await redis.config_set("maxmemory", "0")


def test_url_that_is_none_is_a_setup_error() -> None:
    with pytest.raises(SetupError, match="--store: no Redis URL"):
        redis_store("http://127.0.0.1")
