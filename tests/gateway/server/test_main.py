"""The gateway as a process."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from optimist_gateway.__main__ import main
from tests.gateway.conftest import until_healthy
from tests.gateway.fake_scheduler import FakeScheduler
from tests.stack import free_port

Say = Callable[..., list[int]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_requests_finish_before_a_clean_end(
    scheduler: FakeScheduler, say: Say, model_directory: Path, number: signal.Signals
) -> None:
    say("The quick brown fox", pause_seconds=0.1)
    port = free_port()
    command = [sys.executable, "-m", "optimist_gateway", "--model", str(model_directory)]
    options = ["--port", str(port), "--schedulers", f"127.0.0.1:{scheduler.port}"]
    process = await asyncio.create_subprocess_exec(
        *command, *options, stderr=asyncio.subprocess.PIPE
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(
            base_url=url, trust_env=False, verify=False, timeout=20
        ) as http:
            await until_listening(port)
            await until_healthy(http)
            messages = [{"role": "user", "content": "Hello"}]
            body = {"model": "tiny", "messages": messages, "stream": True}
            async with http.stream("POST", "/v1/chat/completions", json=body) as response:
                process.send_signal(number)
                text = "".join([part async for part in response.aiter_text()])
            assert text.endswith("data: [DONE]\n\n")
        _, errors = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in errors
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
