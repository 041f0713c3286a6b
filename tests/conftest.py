from collections.abc import Iterator
from pathlib import Path

import pytest

from optimist_bench.replicas.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the test may kill."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()
