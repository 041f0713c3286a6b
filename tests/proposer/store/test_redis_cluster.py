"""A real cluster of three: batches whose requests lie on all of them, and a node that dies."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from optimist_bench.replicas.redis_server import RedisServer
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import StoreError
from tests.proposer.holding import Replica, following, observation, opening
from tests.proposer.store.redis_fleet import cluster, cluster_url
from tests.proposer.text import as_text

OpenStore = Callable[..., RedisStore]

POEM = "one\ntwo\nthree\nfour\n"
NAMES = [f"request-{number}" for number in range(48)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RedisServer]]:
    with cluster(tmp_path) as nodes:
        yield nodes


def replica_of(store: RedisStore) -> Replica:
    return Replica(store, following(max_requests=100))


async def test_batch_over_all_nodes_is_shared(
    nodes: list[RedisServer], open_store: OpenStore
) -> None:
    first, second = (
        replica_of(open_store(cluster_url(nodes))),
        replica_of(open_store(cluster_url(nodes))),
    )
    opens = [opening(name, POEM) for name in NAMES]
    await first.proposer.apply(opens, [], [])
    await first.writer.stop()
    await first.proposer.apply([], [observation(0, "ONE\n", name) for name in NAMES], [])
    await first.writer.stop()
    answer = await second.proposer.apply([], [observation(4, "tw", name) for name in NAMES], [])
    assert set(answer.windows) == set(NAMES)
    for window in answer.windows.values():
        assert window.base == 6
    counts = []
    for node in nodes:
        with Redis(port=node.port) as client:
            keys = [str(key) for key in client.keys("test:*:request:*")]
            calls = client.info("commandstats")["cmdstat_eval"]["calls"]
        counts.append(len(keys))
        # A call for each hash tag that the node holds, not for each request.
        assert calls <= len({key.split("{")[1].split("}")[0] for key in keys}) < len(keys)
    assert sum(counts) == len(NAMES)
    assert min(counts) > 0
    await first.proposer.apply([], [], NAMES)
    await first.writer.stop()
    third = replica_of(open_store(cluster_url(nodes)))
    assert len((await third.proposer.apply([], [observation(0, "x", NAMES[0])], [])).gaps) == 1


async def test_node_that_dies_and_comes_back_empty(
    nodes: list[RedisServer], open_store: OpenStore
) -> None:
    first = replica_of(open_store(cluster_url(nodes)))
    await first.proposer.apply([opening(name, POEM) for name in NAMES], [], [])
    await first.writer.stop()
    nodes[1].kill()
    await first.proposer.apply([], [observation(0, "one\n", name) for name in NAMES], [])
    await first.writer.stop()
    with pytest.raises(StoreError, match="Redis"):
        await open_store(cluster_url(nodes)).read(NAMES)
    nodes[1].start()
    # Each further token is written, and with it what the node has lost.
    position, reader = 4, open_store(cluster_url(nodes))
    async with asyncio.timeout(60):
        while True:
            tokens = [observation(position, "t", name) for name in NAMES]
            assert not (await first.proposer.apply([], tokens, [])).gaps
            position += 1
            await first.writer.stop()
            if await num_known(reader, NAMES) == {position}:
                break
            await asyncio.sleep(0.1)
    second = replica_of(open_store(cluster_url(nodes)))
    answer = await second.proposer.apply(
        [], [observation(position, "\none\n", name) for name in NAMES], []
    )
    texts = {as_text(window.draft.token_ids) for window in answer.windows.values()}
    assert texts == {"two\nthree\nfour\n"}


async def num_known(reader: RedisStore, names: list[str]) -> set[int]:
    try:
        found = await reader.read(names)
    except StoreError:
        return set()
    return {-1 if stored is None else stored.num_known for stored in found}
