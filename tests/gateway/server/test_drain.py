"""The gateway as a process: how it starts, and how it ends while requests run."""

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from optimist_gateway.__main__ import main
from tests.certificates import issue, make_authority
from tests.gateway.conftest import until, until_healthy
from tests.gateway.fake_scheduler import FakeScheduler, Script
from tests.stack import free_port

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = BODY | {"stream": True}


@asynccontextmanager
async def gateway(
    scheduler: FakeScheduler, model_directory: Path, *options: str, **client: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.subprocess.Process]]:
    """A gateway process and a client of it; its log must have no traceback."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "optimist_gateway", "--model", str(model_directory)),
        *("--port", str(port), "--schedulers", f"127.0.0.1:{scheduler.port}", *options),
        stderr=asyncio.subprocess.PIPE,
    )
    scheme = "https" if client else "http"
    try:
        await until_listening(port)
        async with httpx.AsyncClient(
            base_url=f"{scheme}://127.0.0.1:{port}", trust_env=False, timeout=20, **client
        ) as http:
            await until_healthy(http)
            yield http, process
        process.send_signal(signal.SIGTERM) if process.returncode is None else None
        _, log = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, log.decode()
        assert b"Traceback" not in log, log.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_listening(port: int) -> None:
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_while_requests_finish_no_others_are_taken(
    scheduler: FakeScheduler,
    say: Callable[..., list[int]],
    model_directory: Path,
    number: signal.Signals,
) -> None:
    say("The quick brown fox jumps", pause_seconds=0.2)
    options = ("--grace-seconds", "30")
    async with (
        gateway(scheduler, model_directory, *options) as (http, process),
        http.stream("POST", CHAT, json=STREAM) as running,
    ):
        process.send_signal(number)
        while (ready := await http.get("/ready")).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/live")).status_code == 200
        assert (await http.get("/startup")).status_code == 200
        refused = await http.post(CHAT, json=BODY)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        text = "".join([part async for part in running.aiter_text()])
        assert text.endswith("data: [DONE]\n\n")
    assert len(scheduler.adds) == 1


async def test_what_does_not_finish_in_time_ends_with_an_error_in_the_stream(
    scheduler: FakeScheduler, say: Callable[..., list[int]], model_directory: Path
) -> None:
    say("The quick", forever=True, pause_seconds=0.02)
    options = ("--grace-seconds", "1")
    async with gateway(scheduler, model_directory, *options) as (http, process):
        whole = asyncio.create_task(http.post(CHAT, json=BODY))
        async with http.stream("POST", CHAT, json=STREAM) as running:
            await until(lambda: len(scheduler.adds) == 2)
            process.send_signal(signal.SIGTERM)
            text = "".join([part async for part in running.aiter_text()])
        *_, event, rest = text.split("\n\n")
        assert rest == ""
        error = json.loads(event.removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "shutting_down")
        answer = await whole
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    aborted = {await scheduler.aborts.get(), await scheduler.aborts.get()}
    assert aborted == {add.handle for add in scheduler.adds}


async def test_a_second_signal_does_not_wait(
    scheduler: FakeScheduler, model_directory: Path
) -> None:
    scheduler.script = Script(hang=True)
    options = ("--grace-seconds", "300")
    async with gateway(scheduler, model_directory, *options) as (http, process):
        waiting = asyncio.create_task(http.post(CHAT, json=BODY))
        await until(lambda: bool(scheduler.adds))
        process.send_signal(signal.SIGTERM)
        while (await http.get("/ready")).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        answer = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(answer, BaseException) or answer.status_code == 503


async def test_unready_before_closed(scheduler: FakeScheduler, model_directory: Path) -> None:
    options = ("--grace-seconds", "0", "--drain-seconds", "1")
    async with gateway(scheduler, model_directory, *options) as (http, process):
        process.send_signal(signal.SIGTERM)
        statuses: list[int] = []
        while not statuses or statuses[-1] != 503:
            statuses.append((await http.get("/ready")).status_code)
        assert (await http.post(CHAT, json=BODY)).status_code == 503
        assert process.returncode is None


async def test_keys_are_read_again_on_a_signal(
    scheduler: FakeScheduler, model_directory: Path, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("ann:first\n")
    options = ("--api-keys-file", str(path))
    async with gateway(scheduler, model_directory, *options) as (http, process):

        async def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return (await http.get("/v1/models", headers=headers)).status_code

        assert [await status("first"), await status("second")] == [200, 401]
        path.write_text("ann:second\n")
        process.send_signal(signal.SIGHUP)
        while await status("second") != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await status("first") == 401


async def test_https(scheduler: FakeScheduler, model_directory: Path, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    certificate = issue(tmp_path, authority, "server", "IP:127.0.0.1")
    options = ("--https-cert", certificate.cert, "--https-key", certificate.key)
    trusted = ssl.create_default_context(cafile=str(authority))
    trusted.maximum_version = ssl.TLSVersion.TLSv1_2
    async with gateway(scheduler, model_directory, *options, verify=trusted) as (http, _):
        assert (await http.get("/live")).status_code == 200
        port = http.base_url.port
        async with httpx.AsyncClient(trust_env=False) as plain:
            try:
                answer = await plain.get(f"http://127.0.0.1:{port}/live")
            except httpx.HTTPError:
                answer = None
            assert answer is None or answer.status_code != 200


def test_a_port_in_use_is_named(model_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--model", str(model_directory), "--port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"optimist gateway: cannot listen on 127.0.0.1:{port}: ")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    command = [sys.executable, "-m", "optimist_gateway", "--model", missing, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert missing in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--model"),
        (["--model", "m", "--max-num-requests", "0"], "--max-num-requests"),
        (["--model", "m", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--model", "m", "--log-level", "loud"], "--log-level"),
    ],
)
def test_wrong_settings_are_named(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
