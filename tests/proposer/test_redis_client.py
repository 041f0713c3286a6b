"""What the client does with the answers of single commands."""

from typing import Any, cast

import pytest
from redis.asyncio import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from optimist_proposer.store.redis_client import RedisClient
from optimist_proposer.store.redis_url import RedisTarget
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
