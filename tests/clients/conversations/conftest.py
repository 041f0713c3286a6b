"""A gateway before a scheduler that follows plans."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.conversations.agents import WORD
from tests.clients.conversations.scripted import CHAT_TEMPLATE, NAME, ScriptedScheduler
from tests.gateway.conftest import save_model
from tests.gateway.fake_scheduler import start_scheduler
from tests.stack import read_metrics, start


@dataclass(frozen=True)
class Served:
    """What clients talk to."""

    url: str
    scheduler: ScriptedScheduler

    def refused(self) -> dict[str, float]:
        """Returns how many requests were answered with which error, by the metric's labels."""
        figures = read_metrics(f"{self.url}/metrics").items()
        return {
            name: count
            for name, count in figures
            if name.startswith("optimist_gateway_requests_total{") and 'outcome="200"' not in name
        }


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("models") / NAME
    save_model(directory, 512, CHAT_TEMPLATE)
    scheduler = ScriptedScheduler(directory)
    with ExitStack() as stack:
        port = stack.enter_context(_running(scheduler))
        address = f"127.0.0.1:{port}"
        gateway = start(stack, "gateway", "--model", str(directory), "--schedulers", address)
        yield Served(f"http://{gateway.address}", scheduler)


@contextmanager
def _running(scheduler: ScriptedScheduler) -> Iterator[int]:
    """Serves beside the tests, which wait for their clients; gives the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        started = asyncio.run_coroutine_threadsafe(start_scheduler(scheduler), loop)
        server, port = started.result(60)
        yield port
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the agent works; beside it is its home."""
    (tmp_path / "home").mkdir()
    (made := tmp_path / "work").mkdir()
    (made / "note.txt").write_text(f"The code word is {WORD}.\n")
    return made
