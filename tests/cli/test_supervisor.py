"""Services are started, watched, restarted and ended; a service that cannot run ends the rest."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.supervisor import Supervisor
from optimist_common.errors import SetupError

# A service that says it is up by writing its start number to a file, and ends as its arguments say.
FAKE_SERVICE = """
import pathlib, sys, time
file, seconds, code = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
starts = int(file.read_text()) + 1 if file.exists() else 1
print(f"start {starts}", flush=True)
file.write_text(str(starts))
time.sleep(seconds)
if code == 2:
    print("optimist first: --model: missing", flush=True)
print("last words", flush=True)
sys.exit(code)
"""


FakeService = Callable[..., ServiceSpec]


class Lines:
    """Collects what services print, and lets a test wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def write(self, name: str, line: str) -> None:
        self.seen.append((name, line))
        self._changed.set()

    async def until(self, name: str, text: str, count: int = 1) -> None:
        while sum(one == name and text in line for one, line in self.seen) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 30)


@pytest.fixture
def fake_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    for name in ("first", "second"):
        package = tmp_path / f"optimist_{name}"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(FAKE_SERVICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("optimist_cli.serve.supervisor.RESTART_PAUSE_SECONDS", 0.0)

    def spec(name: str, seconds: float = 600, code: int = 0, file: str = "") -> ServiceSpec:
        path = tmp_path / f"{file or name}.starts"
        return ServiceSpec(name, [str(path), str(seconds), str(code)], path.exists)

    return spec


@asynccontextmanager
async def watched(supervisor: Supervisor) -> AsyncIterator["asyncio.Task[None]"]:
    """Starts the services of a supervisor that watches them, and stops watching."""
    await supervisor.start()
    watching = asyncio.create_task(supervisor.watch())
    yield watching
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_service_that_dies_is_started_again(fake_service: FakeService) -> None:
    lines = Lines()
    supervisor = Supervisor([fake_service("first", 0.2, 3), fake_service("second")], lines.write)
    async with watched(supervisor):
        await lines.until("first", "start 3")
        await lines.until("first", "exit code 3", 2)
    await supervisor.stop()
    seen = [re.sub(r"\d+\.\d s$", "", line) for name, line in lines.seen if name == "second"]
    assert sorted(seen) == ["ready after ", "start 1"]


async def expect_given_up(spec: ServiceSpec, message: str) -> None:
    supervisor = Supervisor([spec], Lines().write)

    async def start_and_watch() -> None:
        await supervisor.start()
        await supervisor.watch()

    with pytest.raises(SetupError, match=message):
        await start_and_watch()
    await supervisor.stop()


async def test_a_service_that_is_never_healthy_again_is_given_up(
    fake_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimist_cli.serve.supervisor.MAX_RESTARTS", 1)
    # However long it takes to load, it is not healthy for any time.
    monkeypatch.setattr("optimist_cli.serve.supervisor.HEALTHY_SECONDS", 0.001)
    answers = iter([True])
    spec = replace(fake_service("first", 0.05, 1), is_healthy=lambda: next(answers, False))
    await expect_given_up(spec, "first died 2 times in a row")


async def test_a_service_that_cannot_start_says_why(fake_service: FakeService) -> None:
    broken = replace(fake_service("first", 0.0, 2), is_healthy=lambda: False)
    await expect_given_up(broken, "first could not start: optimist first: --model: missing$")


async def test_a_service_that_cannot_start_is_not_waited_for_behind_a_slow_one(
    fake_service: FakeService,
) -> None:
    slow = replace(fake_service("first"), is_healthy=lambda: False)
    broken = replace(fake_service("second", 0.0, 1), is_healthy=lambda: False)
    supervisor = Supervisor([slow, broken], Lines().write)
    with pytest.raises(SetupError, match="second could not start: last words"):
        await asyncio.wait_for(supervisor.start(), 60)
    await supervisor.stop()
    # Nor is one that is slow waited for without end.
    await expect_given_up(replace(slow, start_seconds=0.1), "first was not healthy after 0 s")


async def test_all_services_end_though_one_cannot_be_ended(
    fake_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor([fake_service("first"), fake_service("second")], Lines().write)
    await supervisor.start()
    first, second = supervisor._processes.values()

    async def fail(grace_seconds: float) -> None:
        raise RuntimeError("cannot be ended")

    monkeypatch.setattr(second, "stop", fail)
    try:
        with pytest.raises(RuntimeError, match="cannot be ended"):
            await supervisor.stop()
        assert await asyncio.wait_for(first.exit_code(), 5) == -15
    finally:
        monkeypatch.undo()
        await first.stop(1)
        await second.stop(1)
