"""Services that show each other certificates, and plaintext that stays on the loopback."""

import asyncio
from pathlib import Path
from typing import ClassVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import Field

from optimist_common.errors import SetupError
from optimist_common.network.channel import Tls, load_tls, open_channel
from optimist_common.network.endpoints import is_loopback
from optimist_common.network.health import main
from optimist_common.network.server import GrpcServer
from optimist_common.network.settings import NetworkSettings
from optimist_common.settings import CommaSeparated, load_settings
from tests.certificates import Certificate, issue, make_authority

HOSTS = "IP:127.0.0.1"


class Directory:
    """Certificates of one authority, and of a stranger."""

    def __init__(self, path: Path) -> None:
        authority = make_authority(path)
        self.server = issue(path, authority, "server", HOSTS)
        self.client = issue(path, authority, "client", HOSTS)
        self.elsewhere = issue(path, authority, "elsewhere", "DNS:other.example")
        stranger = make_authority(path, "stranger")
        foreign = issue(path, stranger, "foreign", HOSTS)
        self.foreign = foreign._replace(ca=str(authority))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    return Directory(tmp_path_factory.mktemp("certificates"))


def load(certificate: Certificate) -> Tls:
    tls = load_tls(*certificate)
    assert tls is not None
    return tls


async def ask(server: Tls | None, client: Tls | None, name: str = "") -> int:
    """Asks a server for its health; returns the answer, or raises."""
    served = GrpcServer("127.0.0.1", 0, server)
    port = await served.start()
    await served.set_serving(serving=True)
    try:
        async with open_channel(f"127.0.0.1:{port}", client, server_name=name) as channel:
            request = health_pb2.HealthCheckRequest()
            response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
            return int(response.status)
    finally:
        await served.stop()


async def test_services_of_one_authority_reach_each_other(certificates: Directory) -> None:
    answer = await ask(load(certificates.server), load(certificates.client))
    assert answer == health_pb2.HealthCheckResponse.SERVING


async def test_one_of_several_addresses_of_a_name_shows_a_certificate_for_the_name(
    certificates: Directory,
) -> None:
    server, client = load(certificates.elsewhere), load(certificates.client)
    answer = await ask(server, client, "other.example")
    assert answer == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError):
        await ask(server, client, "another.example")


@pytest.mark.parametrize("who", ["plaintext", "foreign"])
async def test_a_client_without_a_certificate_of_the_authority_is_not_served(
    certificates: Directory, who: str
) -> None:
    client = None if who == "plaintext" else load(certificates.foreign)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(load(certificates.server), client)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("who", ["plaintext", "foreign", "elsewhere"])
async def test_a_server_that_is_not_the_one_of_the_address_gets_no_request(
    certificates: Directory, who: str
) -> None:
    server = None if who == "plaintext" else load(getattr(certificates, who))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server, load(certificates.client))
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_health_is_asked_with_a_certificate(certificates: Directory) -> None:
    server = GrpcServer("127.0.0.1", 0, load(certificates.server))
    address = f"127.0.0.1:{await server.start()}"
    await server.set_serving(serving=True)
    try:
        assert await asyncio.to_thread(main, [*certificates.client.flags, address]) == 0
        assert await asyncio.to_thread(main, [address]) == 1
    finally:
        await server.stop()


def test_files_that_cannot_be_used_are_named(certificates: Directory, tmp_path: Path) -> None:
    right = certificates.server
    missing, text = str(tmp_path / "missing.pem"), tmp_path / "text.pem"
    text.write_text("no certificate")
    wrong = [
        (right._replace(cert=missing), "missing.pem"),
        (right._replace(key=missing), "missing.pem"),
        (right._replace(ca=missing), "missing.pem"),
        (right._replace(key=certificates.client.key), "client.key"),
        (right._replace(cert=str(text)), "text.pem"),
        (right._replace(ca=str(text)), "text.pem"),
    ]
    for files, named in wrong:
        with pytest.raises(SetupError, match=named):
            load_tls(*files)
    assert main(["--tls-cert", missing, "--tls-key", missing, "--tls-ca", missing, "a:1"]) == 2


class Settings(NetworkSettings):
    """A service that calls two others."""

    section: ClassVar[str] = "test"
    peers: ClassVar[tuple[str, ...]] = ("worker", "proposers")

    worker: str = Field("127.0.0.1:1", description="one")
    proposers: CommaSeparated = Field(["localhost:2"], description="several")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--host", "0.0.0.0"], "--host: 0.0.0.0"),
        (["--host", "::"], "--host: ::"),
        (["--host", "example.com"], "--host: example.com"),
        (["--worker", "worker:1"], "--worker: .*worker:1"),
        (["--proposers", "127.0.0.1:1,10.0.0.7:2"], "--proposers: .*10.0.0.7:2"),
        (["--tls-cert", "a.pem"], "together"),
        (["--tls-cert", "a.pem", "--tls-key", "a.key"], "together"),
    ],
)
def test_plaintext_beyond_the_loopback_must_be_asked_for(arguments: list[str], named: str) -> None:
    with pytest.raises(SetupError, match=named):
        load_settings(Settings, arguments)
    if "together" not in named:
        load_settings(Settings, [*arguments, "--insecure", "true"])
        files = ["--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c"]
        load_settings(Settings, [*arguments, *files])


def test_addresses_of_this_machine_alone_are_loopback() -> None:
    own = ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")
    others = ("0.0.0.0", "::", "127.0.0.1.example.com", "localhost.example.com", "", "2130706433")
    assert [host for host in (*own, *others) if is_loopback(host)] == list(own)
