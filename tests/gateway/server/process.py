"""The gateway as a process of its own."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.fake_scheduler import FakeScheduler
from tests.gateway.harness import until
from tests.stack import free_port


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
    url = f"{'https' if client else 'http'}://127.0.0.1:{port}"
    try:
        await until(lambda: listens(port))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20, **client) as http:
            await until_status(http, "/health", 200)
            yield http, process
        # Not `send_signal`: it polls a process that a test has ended, and loses its status.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, log.decode()
        assert b"Traceback" not in log, log.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def until_status(
    http: httpx.AsyncClient, path: str, status: int, **options: Any
) -> httpx.Response:
    while (response := await http.get(path, **options)).status_code != status:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return response
