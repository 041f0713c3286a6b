"""The gateway as a process: how it starts, and how it ends while requests run."""

import asyncio
import contextlib
import signal
import ssl
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer as Backend

from optimist_common.network.http_health import answers
from optimist_gateway.__main__ import main
from tests.certificates import issue, make_authority
from tests.gateway.fake_scheduler import FakeScheduler, Script, start_scheduler
from tests.gateway.harness import BODIES, CHAT, bearer, error_of, script_of, until
from tests.gateway.server.process import gateway, listens, until_status

STREAM = BODIES[CHAT] | {"stream": True}
GRACE = ("--grace-seconds",)


async def test_https_keys_that_change_and_streams_that_end_whole(
    scheduler: FakeScheduler, backend: Backend, model_directory: Path, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    certificate = issue(tmp_path, authority, "server", "IP:127.0.0.1")
    trusted = ssl.create_default_context(cafile=str(authority))
    trusted.maximum_version = ssl.TLSVersion.TLSv1_2
    path = tmp_path / "keys"
    path.write_text("ann:first\n")
    options = [
        *("--https-cert", certificate.cert, "--https-key", certificate.key),
        *("--api-keys-file", str(path), "--grace-seconds", "60", "--drain-seconds", "1"),
    ]
    first, second = bearer("first"), bearer("second")
    scheduler.script = script_of(backend, "The quick brown fox jumps", pause_seconds=0.2)
    async with gateway(scheduler, model_directory, *options, verify=trusted) as (http, process):
        async with httpx.AsyncClient(trust_env=False) as plain:
            with contextlib.suppress(httpx.HTTPError):
                answer = await plain.get(f"http://127.0.0.1:{http.base_url.port}/live")
                assert answer.status_code != 200
        assert (await http.get("/v1/models", headers=first)).status_code == 200
        assert (await http.get("/v1/models", headers=second)).status_code == 401
        path.write_text("ann:second\n")
        process.send_signal(signal.SIGHUP)
        await until_status(http, "/v1/models", 200, headers=second)
        assert (await http.get("/v1/models", headers=first)).status_code == 401
        async with http.stream("POST", CHAT, json=STREAM, headers=second) as running:
            process.send_signal(signal.SIGTERM)
            ready = await until_status(http, "/ready", 503)
            assert ready.headers["retry-after"] == "1"
            for probe, status in (("/health", 503), ("/live", 200)):
                assert (await http.get(probe)).status_code == status
            refused = await http.post(CHAT, json=BODIES[CHAT], headers=second)
            assert error_of(refused, 503)["code"] == "shutting_down"
            headers = refused.headers
            assert (headers["retry-after"], headers["connection"]) == ("1", "close")
            text = "".join([part async for part in running.aiter_text()])
        assert text.endswith("data: [DONE]\n\n")
    assert len(scheduler.adds) == 1


async def test_it_lives_whatever_its_scheduler_does_until_a_second_signal(
    backend: Backend, model_directory: Path
) -> None:
    scheduler = FakeScheduler(backend.get_vocab_size(), Script(hang=True))
    server, scheduler.port = await start_scheduler(scheduler)
    async with gateway(scheduler, model_directory, *GRACE, "300") as (http, process):
        waiting = asyncio.create_task(http.post(CHAT, json=BODIES[CHAT]))
        await until(lambda: bool(scheduler.adds))
        await server.stop()
        await until_status(http, "/ready", 503)
        live, seconds = f"{http.base_url}/live", 1.0
        assert await asyncio.to_thread(answers, live, seconds)
        process.send_signal(signal.SIGSTOP)
        try:
            # A look at the port sees nothing.
            assert listens(http.base_url.port or 0)
            assert not await asyncio.to_thread(answers, live, seconds)
        finally:
            process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        while (await http.get("/ready")).json()["reason"] != "the server is shutting down":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        answer = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(answer, BaseException) or answer.status_code == 503


def test_a_host_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", "--host", "no.such.host.invalid"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no.such.host.invalid" in line
