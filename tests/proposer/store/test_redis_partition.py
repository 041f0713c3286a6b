"""A Redis that is there and does not answer: requests that live in a replica go on."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import REGISTRY

from optimist_bench.replicas.redis_server import RedisServer
from optimist_bench.replicas.tcp_proxy import TcpProxy
from optimist_common.errors import SetupError
from optimist_proposer.core.messages import UNKNOWN
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import StoreError
from tests.proposer.holding import Replica, observation, opening
from tests.proposer.text import as_text

OpenStore = Callable[..., RedisStore]

POEM = "one\ntwo\nthree\nfour\n"


@pytest.fixture
async def proxy(own_redis_server: RedisServer) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(own_redis_server.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_port_that_never_answers_keeps_it_from_starting(open_store: OpenStore) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        store = open_store(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", timeout_ms=50)
        with pytest.raises(SetupError, match="cannot reach Redis"):
            await store.start()


async def test_port_that_never_answers_is_asked_once_and_then_left_alone(
    open_store: OpenStore,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        store = open_store(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", timeout_ms=50)
        with pytest.raises(StoreError, match=r"50 ms|Timeout"):
            await store.read(["a"])
        assert REGISTRY.get_sample_value("optimist_proposer_breaker_open") == 1
        before = REGISTRY.get_sample_value("optimist_proposer_redis_round_trips_total")
        with pytest.raises(StoreError, match="failed a moment ago"):
            await store.read(["a"])
        assert REGISTRY.get_sample_value("optimist_proposer_redis_round_trips_total") == before


async def test_partition_costs_no_request_that_lives_here(
    proxy: TcpProxy, open_store: OpenStore
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    replica, other = (Replica(open_store(url, timeout_ms=100)) for _ in range(2))
    await replica.proposer.apply([opening("a", POEM)], [observation(0, "one\n")], [])
    await replica.writer.stop()
    proxy.cut()
    answer = await replica.proposer.apply([], [observation(4, "TWO\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == ""
    answer = await replica.proposer.apply([], [observation(8, "three\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == "four\n"
    await replica.writer.stop()
    # Another replica cannot know it, and says so.
    assert (await other.proposer.apply([], [observation(4, "TWO\n")], [])).gaps == {"a": UNKNOWN}
    proxy.mend()
    position = 14
    async with asyncio.timeout(30):
        while True:
            await replica.proposer.apply([], [observation(position, "X")], [])
            position += 1
            await replica.writer.stop()
            answer = await other.proposer.apply([], [observation(position, "\none\n")], [])
            if not answer.gaps:
                break
            await asyncio.sleep(0.05)
    assert as_text(answer.windows["a"].draft.token_ids) == "two\nthree\nfour\n"


async def test_frozen_redis_costs_no_request_that_lives_here(
    own_redis_server: RedisServer, open_store: OpenStore
) -> None:
    replica = Replica(open_store(own_redis_server.url, timeout_ms=100))
    await replica.proposer.apply([opening("a", POEM)], [], [])
    await replica.writer.stop()
    own_redis_server.freeze()
    answer = await replica.proposer.apply([], [observation(0, "ONE\ntwo\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == "three\nfour\n"
    own_redis_server.thaw()


async def test_redis_that_comes_back_empty_gets_everything_again(
    own_redis_server: RedisServer, open_store: OpenStore
) -> None:
    store, reader = (open_store(own_redis_server.url) for _ in range(2))
    replica = Replica(store)
    await replica.proposer.apply([opening("a", POEM)], [observation(0, "one\n")], [])
    await replica.writer.stop()
    own_redis_server.kill()
    await replica.proposer.apply([], [observation(4, "two\n")], [])
    await replica.writer.stop()
    own_redis_server.start()
    position, deadline = 8, time.monotonic() + 30
    while True:
        assert time.monotonic() < deadline
        await replica.proposer.apply([], [observation(position, "X")], [])
        position += 1
        await replica.writer.stop()
        other = Replica(reader)
        answer = await other.proposer.apply([], [observation(position, "\none\n")], [])
        if not answer.gaps:
            break
        await asyncio.sleep(0.05)
    assert as_text(answer.windows["a"].draft.token_ids) == "two\nthree\nfour\n"
