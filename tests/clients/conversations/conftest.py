"""A gateway before a scheduler that follows plans."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

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
        # Beside the tests, which wait for their clients.
        portal = stack.enter_context(start_blocking_portal())
        server, port = portal.call(start_scheduler, scheduler)
        stack.callback(portal.call, server.stop)
        address = f"127.0.0.1:{port}"
        gateway = start(stack, "gateway", "--model", str(directory), "--schedulers", address)
        yield Served(f"http://{gateway.address}", scheduler)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the agent works; beside it is its home."""
    (tmp_path / "home").mkdir()
    (made := tmp_path / "work").mkdir()
    (made / "note.txt").write_text(f"The code word is {WORD}.\n")
    return made
