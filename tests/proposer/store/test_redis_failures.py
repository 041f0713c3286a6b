"""A Redis that dies, hangs or comes back empty, alone, with a Sentinel or as a cluster."""

import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from redis import Redis

from optimist_common.errors import SetupError
from optimist_proposer.core.messages import UNKNOWN, Answer
from optimist_proposer.core.stored_request import StoredRequest
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import StoreError
from tests.chaos.faults.proxy import BLACK_HOLE, UNDISTURBED, FaultProxy
from tests.proposer.holding import (
    POEM,
    Replica,
    follow_until_shared,
    observation,
    opening,
    redis_store,
)
from tests.proposer.text import as_text
from tests.redis_server import RedisServer
from tests.stack import free_port, wait_until

OpenStore = Callable[..., RedisStore]

SERVICE = "mymaster"
PASSWORD = "secret"
NUM_SLOTS, NUM_NODES = 16384, 3
NAMES = [f"request-{number}" for number in range(48)]


@dataclass(frozen=True)
class Watched:
    """A master that has a replica, and the URL of the Sentinel that watches them."""

    master: RedisServer
    url: str


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Runs a master with a password, a replica and a Sentinel that is quick to fail over."""
    directory = tmp_path_factory.mktemp("fleet")
    password = ("--requirepass", PASSWORD, "--masterauth", PASSWORD)
    with ExitStack() as stack:
        master = _start(stack, directory / "master", *password)
        replica = _start(
            stack, directory / "replica", *password, "--replicaof", f"127.0.0.1 {master.port}"
        )
        with Redis(port=replica.port, password=PASSWORD) as client:
            wait_until(lambda: client.info()["master_link_status"] == "up", "a replica")
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1\n"
            f"sentinel auth-pass {SERVICE} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {SERVICE} 300\n"
            f"sentinel failover-timeout {SERVICE} 3000\n",
            encoding="utf-8",
        )
        sentinel = _start(stack, directory / "sentinel", str(configuration), "--sentinel")
        with Redis(port=sentinel.port) as client:
            wait_until(lambda: client.sentinel_master(SERVICE)["num-slaves"] == 1, "a Sentinel")
        yield Watched(master, f"redis+sentinel://:{PASSWORD}@{sentinel.address}/{SERVICE}/0")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Runs a cluster of masters that goes on serving while one is away."""
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    with ExitStack() as stack:
        nodes = [
            _start(stack, tmp_path / f"node{n}", *options, "--cluster-port", str(free_port()))
            for n in range(NUM_NODES)
        ]
        clients = [stack.enter_context(Redis(port=node.port)) for node in nodes]
        for number, client in enumerate(clients):
            first, end = (NUM_SLOTS * n // NUM_NODES for n in (number, number + 1))
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
            bus = client.config_get("cluster-port")["cluster-port"]
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", nodes[number].port, bus)
        wait_until(lambda: {*map(_num_masters, clients)} == {NUM_NODES}, "a cluster")
        yield nodes


def cluster_url(nodes: list[RedisServer]) -> str:
    return f"redis+cluster://{','.join(node.address for node in nodes)}"


def _num_masters(client: "Redis") -> int:
    """Returns how many masters a node knows to serve all slots together; 0 if not all."""
    info = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    if info["cluster_state"] != "ok" or int(info["cluster_slots_ok"]) != NUM_SLOTS:
        return 0
    return int(info["cluster_size"])


def _start(stack: ExitStack, directory: Path, *arguments: str) -> RedisServer:
    directory.mkdir()
    return stack.enter_context(RedisServer(directory, *arguments))


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores as `redis_store` does, and closes them when the test is over."""
    stores: list[RedisStore] = []

    def open_one(url: str, timeout_ms: int = 2000) -> RedisStore:
        stores.append(redis_store(url, timeout_ms=timeout_ms))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.stop()


@pytest.fixture
async def proxy(own_redis_server: RedisServer) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(("127.0.0.1", own_redis_server.port))
    await proxy.start()
    yield proxy
    await proxy.stop()


async def opened(store: RedisStore, *names: str, output: str = "") -> Replica:
    """Returns a replica that has opened requests, and written what it knows of them."""
    replica = Replica(store)
    outputs = [observation(0, output, name) for name in names]
    await replica.proposer.apply([opening(name, POEM) for name in names], outputs, [])
    await replica.writer.stop()
    return replica


def window_text(answer: Answer) -> str:
    return as_text(answer.windows["a"].draft.token_ids)


async def test_port_that_never_answers_is_asked_once_and_then_left_alone(
    open_store: OpenStore,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        store = open_store(url, timeout_ms=50)
        with pytest.raises(StoreError, match=r"50 ms|Timeout"):
            await store.read({"a": 1})
        assert REGISTRY.get_sample_value("optimist_proposer_redis_breaker_open") == 1
        before = REGISTRY.get_sample_value("optimist_proposer_redis_round_trips_total")
        with pytest.raises(StoreError, match="failed a moment ago"):
            await store.read({"a": 1})
        assert REGISTRY.get_sample_value("optimist_proposer_redis_round_trips_total") == before


async def test_partition_costs_no_request_that_lives_here(
    proxy: FaultProxy, open_store: OpenStore
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    replica = await opened(open_store(url, timeout_ms=100), "a", output="one\n")
    reader = open_store(url, timeout_ms=100)
    await proxy.disturb(BLACK_HOLE)
    answer = await replica.proposer.apply([], [observation(4, "TWO\n")], [])
    assert window_text(answer) == ""
    answer = await replica.proposer.apply([], [observation(8, "three\n")], [])
    assert window_text(answer) == "four\n"
    await replica.writer.stop()
    # Another replica cannot know it, and says so.
    answer = await Replica(reader).proposer.apply([], [observation(4, "TWO\n")], [])
    assert answer.gaps == {"a": UNKNOWN}
    await proxy.disturb(UNDISTURBED)
    assert await follow_until_shared(replica, reader, 14) == {"two\nthree\nfour\n"}


async def test_node_of_a_cluster_that_dies_and_comes_back_empty(
    nodes: list[RedisServer], open_store: OpenStore
) -> None:
    replica = await opened(open_store(cluster_url(nodes)), *NAMES)
    nodes[1].kill()
    await replica.proposer.apply([], [observation(0, "one\n", name) for name in NAMES], [])
    await replica.writer.stop()
    with pytest.raises(StoreError, match="Redis"):
        await open_store(cluster_url(nodes)).read(dict.fromkeys(NAMES, 4))
    nodes[1].start()
    # Each further token is written, and with it what the node has lost.
    reader = open_store(cluster_url(nodes))
    assert await follow_until_shared(replica, reader, 4, NAMES) == {"two\nthree\nfour\n"}


async def test_start_does_not_wait_for_redis_and_takes_it_up_when_it_comes(
    own_redis_server: RedisServer, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis_server.kill()
    store, reader = open_store(own_redis_server.url), open_store(own_redis_server.url)
    with caplog.at_level(logging.INFO):
        await store.start()
        replica = await opened(store, "a", output="one\n")
        answer = await replica.proposer.apply([], [observation(4, "TWO\nthree\n")], [])
        assert window_text(answer) == "four\n"
        # A key that holds anything is no reason to leave it alone.
        own_redis_server.start()
        with Redis(port=own_redis_server.port) as client:
            client.rpush("test:{0}", "x")
        assert await follow_until_shared(replica, reader, 14) == {"two\nthree\nfour\n"}
    assert caplog.text.count(f"cannot reach Redis at {own_redis_server.url}: ") == 1
    assert caplog.messages.count("Redis answers; outputs are shared") == 1


async def test_failover_by_a_sentinel_loses_no_request(
    fleet: Watched, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    # Whom a Sentinel does not know may come later, and a password may be wrong.
    await open_store(fleet.url.replace("/mymaster", "/other")).start()
    assert caplog.text.count("cannot reach Redis at redis+sentinel") == 1
    assert "secret" not in caplog.text
    with pytest.raises(SetupError, match="refuses"):
        await open_store(fleet.url.replace("secret", "wrong")).start()
    store, reader = open_store(fleet.url), open_store(fleet.url)
    await store.start()
    replica = await opened(store, "a", output="one\n")
    stored = (await reader.read({"a": 4}))["a"]
    assert isinstance(stored, StoredRequest)
    assert len(stored.output) == 4
    fleet.master.kill()
    # Each token is followed, whoever is master.
    assert await follow_until_shared(replica, reader, 4) == {"two\nthree\nfour\n"}
