"""Servers and channels: who reaches whom, with which certificates, and how a loss is noticed."""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.errors import SetupError
from optimist_common.network import channel, server
from optimist_common.network.channel import load_tls, open_channel
from optimist_common.network.health import is_serving, main
from optimist_common.network.server import (
    GrpcServer,
    bind,
)
from optimist_common.network.settings import NetworkSettings
from optimist_common.settings import load_settings
from tests.certificates import Certificate, issue, make_authority
from tests.chaos.faults.proxy import BLACK_HOLE, FaultProxy
from tests.common.ipv6 import needs_ipv6
from tests.common.served import serve

HOSTS = "IP:127.0.0.1"
# Waits are as much shorter here.
SCALE = 20
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class ExampleSettings(NetworkSettings):
    """A service that listens."""

    section = "example"


@needs_ipv6
async def test_a_server_listens_on_ipv6() -> None:
    with pytest.raises(SetupError, match=r"--host: must be an address .*, not 'a\.\.b'"):
        load_settings(ExampleSettings, ["--host", "a..b"])
    host = load_settings(ExampleSettings, ["--host", "[::1]"]).host
    async with serve(host=host) as (_, address):
        assert address.startswith("[::1]:")
        assert await asyncio.to_thread(is_serving, address, 5.0)
        with pytest.raises(SetupError, match=rf"cannot listen on {re.escape(address)}: "):
            bind(host, int(address.rpartition(":")[2]))


async def test_what_grpc_cannot_bind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    unbound = GrpcServer("127.0.0.1", 0)

    def refuse(address: str) -> int:
        raise RuntimeError(f"Failed to bind to address {address}")

    monkeypatch.setattr(unbound.server, "add_insecure_port", refuse)
    with pytest.raises(SetupError, match=r"cannot listen on 127\.0\.0\.1:0"):
        await unbound.start()
    await unbound.server.stop(None)


class Servicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Says one thing, and then nothing until it is cancelled."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.add = partial(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, self)

    async def Describe(self, request: Any, context: Any) -> scheduler_pb2.DescribeResponse:  # noqa: N802
        return scheduler_pb2.DescribeResponse()

    async def Connect(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        try:
            yield scheduler_pb2.ConnectResponse()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_both_sides_of_a_silent_connection_give_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((channel, "OPTIONS"), (server, "SERVER_OPTIONS")):
        scaled = [
            (
                option,
                value // SCALE if option.endswith("_ms") and "backoff" not in option else value,
            )
            for option, value in getattr(module, name)
        ]
        monkeypatch.setattr(module, name, scaled)
    servicer = Servicer()
    async with serve(add=servicer.add) as (_, address):
        proxy = FaultProxy(("127.0.0.1", int(address.rpartition(":")[2])))
        await proxy.start()
        try:
            async with open_channel(f"127.0.0.1:{proxy.port}") as opened:
                call = scheduler_pb2_grpc.SchedulerServiceStub(opened).Connect()
                await call.write(scheduler_pb2.ConnectRequest())
                await call.read()
                await proxy.disturb(BLACK_HOLE)
                # Without pings, or a limit for their answers, either would wait for a minute.
                async with asyncio.timeout(20):
                    with pytest.raises(grpc.aio.AioRpcError) as raised:
                        await call.read()
                    await servicer.ended.wait()
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            await proxy.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    """Certificates of one authority, and one of a stranger, who knows that authority."""
    path = tmp_path_factory.mktemp("certificates")
    authority, stranger = make_authority(path), make_authority(path, "stranger")
    names = {"server": HOSTS, "client": HOSTS, "elsewhere": "DNS:other.example"}
    found = {name: issue(path, authority, name, hosts) for name, hosts in names.items()}
    return found | {"foreign": issue(path, stranger, "foreign", HOSTS)._replace(ca=str(authority))}


@pytest.mark.parametrize(
    ("server", "client", "name", "refusals"),
    [
        ("server", "client", "", ()),
        # One of several addresses of a name shows a certificate for the name.
        ("elsewhere", "client", "other.example", ()),
        # A client without a certificate of the authority is not served.
        ("server", "plaintext", "", AWAY[:1]),
        ("server", "foreign", "", AWAY[:1]),
        # A server that is not the one of the address gets no request.
        ("foreign", "client", "", AWAY),
        ("elsewhere", "client", "", AWAY),
    ],
)
async def test_services_of_one_authority_alone_reach_each_other(
    certificates: dict[str, Certificate],
    server: str,
    client: str,
    name: str,
    refusals: tuple[grpc.StatusCode, ...],
) -> None:
    own, others = (
        None if who == "plaintext" else load_tls(*certificates[who]) for who in (server, client)
    )
    async with (
        serve(own) as (_, address),
        open_channel(address, others, server_name=name) as opened,
    ):
        asked = health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest(), timeout=5)
        if not refusals:
            assert (await asked).status == health_pb2.HealthCheckResponse.SERVING
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked
        assert caught.value.code() in refusals


def test_files_that_cannot_be_used_are_named(
    certificates: dict[str, Certificate], tmp_path: Path
) -> None:
    right = certificates["server"]
    missing, text = str(tmp_path / "missing.pem"), tmp_path / "text.pem"
    text.write_text("no certificate")
    wrong = [
        (right._replace(cert=missing), "missing.pem"),
        (right._replace(key=certificates["client"].key), "client.key"),
        (right._replace(cert=str(text)), "text.pem"),
        (right._replace(ca=str(text)), "text.pem"),
    ]
    for files, named in wrong:
        with pytest.raises(SetupError, match=named):
            load_tls(*files)
    assert main([*Certificate(missing, missing, missing).flags, "a:1"]) == 2


async def test_a_call_that_grpc_never_ends_does_not_keep_a_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("optimist_common.network.server.CANCEL_SECONDS", 0.01)
    server = GrpcServer("127.0.0.1", 0)
    await server.start()
    stop, is_over = server.server.stop, asyncio.Event()

    async def stop_late(grace: float | None) -> None:
        await is_over.wait()

    monkeypatch.setattr(server.server, "stop", stop_late)
    await server.end_calls(0)
    assert "has not ended all calls" in caplog.text
    is_over.set()
    await stop(0)
