from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from optimist_bench.replicas.redis_server import RedisServer

# How long a test takes says something of the machine, not of what is tested.
hypothesis.settings.register_profile("optimist", deadline=None)
hypothesis.settings.load_profile("optimist")


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
