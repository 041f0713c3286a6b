"""A Redis that fails is left alone, and each URL has its client."""

from typing import Any, cast

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    SlotNotCoveredError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from optimist_proposer.store.redis_client import RedisClient
from optimist_proposer.store.redis_url import RedisTarget, open_redis
from optimist_proposer.store.store import StoreError


class ClusterOfAnswers:
    """Answers each pipeline with the same."""

    def __init__(self, *answers: object) -> None:
        self.answers = answers
        self.num_closed = 0

    def pipeline(self, **_options: Any) -> "ClusterOfAnswers":
        return self

    def execute_command(self, *_command: Any) -> None:
        pass

    async def execute(self, **_options: Any) -> list[object]:
        return list(self.answers)

    async def aclose(self) -> None:
        self.num_closed += 1


def client_of(monkeypatch: pytest.MonkeyPatch, *answers: object) -> RedisClient:
    """Returns a client of a cluster that answers so."""
    target = RedisTarget(cast("RedisCluster", ClusterOfAnswers(*answers)), num_shards=2)
    monkeypatch.setattr("optimist_proposer.store.redis_client.open_redis", lambda *_: target)
    return RedisClient("redis+cluster://node", "test", 1000)


@pytest.mark.parametrize(
    "error",
    [
        RedisConnectionError("reset"),
        BusyLoadingError("loading"),
        AuthenticationError("revoked"),
        ReadOnlyError("a replica"),
        ClusterDownError("CLUSTERDOWN"),
        SlotNotCoveredError("no node"),
    ],
)
async def test_redis_that_can_do_nothing_is_left_alone_and_looked_for_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(monkeypatch, b"value", error)
    with pytest.raises(StoreError, match=str(error)):
        await client.run([("GET", "a"), ("GET", "b")], is_urgent=False)
    assert client._pause
    assert cast("ClusterOfAnswers", client._target.client).num_closed == 1
    await client.stop()


def test_nothing_is_waited_for_long_or_tried_twice() -> None:
    client = open_redis("redis://user:secret@host:7000/3", 0.05).client
    assert isinstance(client, Redis)
    options = client.connection_pool.connection_kwargs
    assert options["socket_timeout"] == options["socket_connect_timeout"] == 0.05
    assert options["retry"].get_retries() == 0


def test_sentinel_url_names_sentinels_service_and_database() -> None:
    target = open_redis(
        "redis+sentinel://:p%40ss@one:26000,two,[::1]:5/mymaster/2"
        "?sentinel_username=watcher&sentinel_password=other",
        0.05,
    )
    assert target.sentinel is not None
    pools = [one.connection_pool.connection_kwargs for one in target.sentinel.sentinels]
    hosts = [(each["host"], each["port"]) for each in pools]
    assert hosts == [("one", 26000), ("two", 26379), ("::1", 5)]
    assert isinstance(target.client, Redis)
    pool = target.client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "mymaster"
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (2, "p@ss")
    own = target.sentinel.sentinel_kwargs
    assert (own["username"], own["password"]) == ("watcher", "other")
    assert own["socket_timeout"] == 0.05
    assert target.num_shards == 1


@pytest.mark.parametrize("scheme", ["rediss+sentinel", "rediss+cluster"])
def test_two_s_speak_tls(scheme: str) -> None:
    target = open_redis(f"{scheme}://host{'/service' if 'sentinel' in scheme else ''}", 0.05)
    if isinstance(target.client, RedisCluster):
        assert "SSL" in target.client.connection_kwargs["connection_class"].__name__
    else:
        assert "SSL" in target.client.connection_pool.connection_class.__name__


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host", "no Redis URL begins with http://"),
        ("redis+sentinel://host", "redis\\+sentinel://host:port,.../service/db"),
        ("redis+sentinel://host/service/x", "no database: 'x'"),
        ("redis+sentinel://host/service?password=x", "no option password"),
        ("redis+sentinel://host,,other/service", "no host in ''"),
        ("redis+sentinel://host:99999/service", "no port: '99999'"),
        ("redis+cluster://host/1", "ends after its hosts"),
    ],
)
def test_wrong_url_is_an_error(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_redis(url, 0.05)
