import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from openai import OpenAI

from tests import fork_server
from tests.redis_server import RedisServer
from tests.stack import ENGINE_PYTHON, Stack

# Nothing of what is imported is garbage: it is not searched while tests are collected, nor later.
gc.disable()
# Every core runs tests: threads that share the work of small models would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where there is a GPU, workers would choose it.
os.environ.setdefault("OPTIMIST_WORKER_DEVICE", "cpu")

# How long a test takes says something of the machine, not of what is tested. Examples are the same
# each time, so that a commit either passes or does not; `make explore` looks for new ones.
hypothesis.settings.register_profile("optimist", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=500)
hypothesis.settings.load_profile("optimist")

# Longest first: whoever begins one of them last lets the other cores wait for it.
SLOW = (
    *(
        "deploy/test_containers",
        "integration/",
        "chaos/",
        "fuzz/",
        "worker/parallel/",
        "bench/",
        "page/",
    ),
    *("training/", "tracing/", "scheduler/core/", "worker/"),
)


def pytest_sessionstart() -> None:
    """Refuses to test what was compiled before its sources changed; starts services fast."""
    fork_server.install()
    aligner = Path(__file__).parents[1] / "aligner"
    for compiled in aligner.glob("optimist_aligner/*.so"):
        for source in aligner.glob("src/*"):
            if source.stat().st_mtime > compiled.stat().st_mtime:
                pytest.exit(f"{source} is newer than what was compiled of it: make setup", 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets slow files begin first; the order is otherwise as it was."""

    def rank(item: pytest.Item) -> int:
        name = item.nodeid.removeprefix("tests/")
        return next((i for i, slow in enumerate(SLOW) if name.startswith(slow)), len(SLOW))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Looks for garbage from now on, and seldom: what tests make is rarely any."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Takes back what a command that ran in this process has set: its stream is closed later."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def request_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `stack` logs requests."""
    return tmp_path_factory.mktemp("request_logs")


@pytest.fixture(scope="session")
def stack(request_logs: Path) -> Iterator[Stack]:
    """All services with the bundled model; whoever harms one waits until it is back."""
    service = "ENGINE" if ENGINE_PYTHON else "PROPOSER"
    variable = f"OPTIMIST_{service}_REQUEST_LOG"
    running = Stack(**{variable: "true", f"{variable}_DIR": str(request_logs)})
    yield running
    # As Ctrl-C ends it; other tests end theirs by SIGTERM.
    running.stop(signal.SIGINT)


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the test may kill."""
    with RedisServer(tmp_path) as server:
        yield server
