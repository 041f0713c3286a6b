"""Whether a service serves and lives, as a container asks it, and that a hang ends both."""

import asyncio
import socket
from pathlib import Path
from types import ModuleType

import pytest

from optimist_common.network import health, http_health
from optimist_common.network.channel import load_tls
from optimist_common.network.health import is_serving, main
from optimist_common.network.server import LIVENESS, STEPS, watch_for_hangs
from tests.certificates import issue, make_authority
from tests.cli.fake_gateway import serving
from tests.common.served import serve
from tests.stack import free_port

LOOPBACK = "127.0.0.1"


async def is_healthy(address: str, service: str = "") -> bool:
    return await asyncio.to_thread(is_serving, address, 5.0, service)


async def until_health(address: str, *, good: bool) -> None:
    async with asyncio.timeout(20):
        for service in ("", STEPS):
            while await is_healthy(address, service) is not good:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_liveness_is_apart_from_readiness() -> None:
    async with serve(serving=False) as (server, address):
        assert not await is_healthy(address)
        assert await is_healthy(address, LIVENESS)
        await server.set_serving(serving=True)
        await server.set_alive(alive=False)
        assert await is_healthy(address)
        assert await asyncio.to_thread(main, [address]) == 0
        assert await asyncio.to_thread(main, ["--service", LIVENESS, address]) == 1


@pytest.mark.parametrize("is_own", [True, False])
async def test_health_follows_the_work_and_liveness_what_a_new_start_mends(
    caplog: pytest.LogCaptureFixture, *, is_own: bool
) -> None:
    seconds = 0.0
    async with serve() as (server, address), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch_for_hangs(server, lambda: seconds, 0.05, is_own=is_own))
        await asyncio.sleep(0.1)
        await until_health(address, good=True)
        seconds = 7.0
        await until_health(address, good=False)
        assert await is_healthy(address, LIVENESS) is not is_own
        seconds = 0.0
        await until_health(address, good=True)
        shown = [record.message for record in caplog.records]
        assert shown == ["a step has not ended for 7 seconds", "steps end again"]
        watching.cancel()


async def test_a_container_asks_with_the_files_of_its_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = issue(tmp_path, make_authority(tmp_path), "worker", "IP:127.0.0.1")
    async with serve(load_tls(*files)) as (_, address):
        assert await asyncio.to_thread(main, [address]) == 1
        for name, path in files._asdict().items():
            monkeypatch.setenv(f"OPTIMIST_WORKER_TLS_{name.upper()}", path)
        assert await asyncio.to_thread(main, [address]) == 0


async def test_a_server_that_never_answers_is_not_serving() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        address = f"{LOOPBACK}:{silent.getsockname()[1]}"
        assert not await asyncio.to_thread(is_serving, address, 0.2)


def test_the_certificate_of_a_gateway_need_not_name_the_loopback(tmp_path: Path) -> None:
    shown = issue(tmp_path, make_authority(tmp_path), "gateway", "DNS:api.example")
    with serving([], [], certificate=shown) as url:
        assert url.startswith("https://")
        assert http_health.answers(f"{url}/health", 5.0)
        assert not http_health.answers(url.replace("https", "http"), 5.0)


@pytest.mark.parametrize("module", [health, http_health])
def test_who_serves_is_exit_code_0_nobody_1_and_a_wrong_call_2(
    module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"{LOOPBACK}:{free_port()}"
    if module is http_health:
        nobody = f"http://{nobody}/health"
        with serving([], []) as url:
            assert module.main([f"{url}/health"]) == 0
    assert module.main([nobody]) == 1
    assert nobody in capsys.readouterr().err
    assert module.main([]) == 2
