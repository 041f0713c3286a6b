"""A Redis that fails is left alone, and each URL has its client."""

from typing import Any, cast

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from optimist_proposer.store.redis_client import (
    CircuitBreaker,
    RedisClient,
    RedisTarget,
    open_redis,
)
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


@pytest.mark.parametrize(
    ("error", "num_closed"), [(RedisConnectionError("reset"), 1), (ResponseError("wrong"), 0)]
)
async def test_connection_that_a_command_lost_makes_it_look_for_the_nodes_again(
    error: Exception, num_closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ClusterOfAnswers(b"value", error)
    target = RedisTarget(cast("RedisCluster", cluster), num_shards=2)
    monkeypatch.setattr("optimist_proposer.store.redis_client.open_redis", lambda *_: target)
    client = RedisClient("redis+cluster://node", "test", 1000)
    with pytest.raises(StoreError, match=str(error)):
        await client.run([("GET", "a"), ("GET", "b")], is_urgent=False)
    assert cluster.num_closed == num_closed
    await client.stop()


def test_pauses_double_up_to_the_longest_and_end_with_a_success() -> None:
    breaker = CircuitBreaker(0.25, 1.0)
    assert (breaker.is_open, breaker.pause_seconds) == (False, 0)
    pauses = []
    for _ in range(4):
        breaker.failed()
        assert breaker.is_open
        pauses.append(breaker.pause_seconds)
    assert pauses == [0.25, 0.5, 1.0, 1.0]
    breaker.succeeded()
    assert not breaker.is_open
    breaker.failed()
    assert breaker.pause_seconds == 0.25


def test_plain_url_is_one_redis_with_short_patience_and_no_retries() -> None:
    client = open_redis("redis://user:secret@host:7000/3", 0.05).client
    assert isinstance(client, Redis)
    options = client.connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["db"]) == ("host", 7000, 3)
    assert (options["username"], options["password"]) == ("user", "secret")
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


def test_cluster_url_names_some_nodes() -> None:
    target = open_redis("redis+cluster://user:secret@one:7000,two", 0.05)
    assert isinstance(target.client, RedisCluster)
    nodes = [(node.host, node.port) for node in target.client.startup_nodes]
    assert nodes == [("one", 7000), ("two", 6379)]
    assert target.client.connection_kwargs["password"] == "secret"
    assert target.num_shards > 1


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
        ("redis+sentinel://host/service/0/1", "redis\\+sentinel://host:port,.../service/db"),
        ("redis+sentinel://host/service/x", "no database: 'x'"),
        ("redis+sentinel://host/service?password=x", "no option password"),
        ("redis+sentinel://host,,other/service", "no host in ''"),
        ("redis+sentinel://host:99999/service", "no port: '99999'"),
        ("redis+cluster://host/1", "ends after its hosts"),
        ("redis://host:port/x", "Port could not be cast|invalid"),
    ],
)
def test_wrong_url_is_an_error(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_redis(url, 0.05)
