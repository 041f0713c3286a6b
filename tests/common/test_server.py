import asyncio

import pytest

from optimist_common.errors import SetupError
from optimist_common.network.channel import OPTIONS
from optimist_common.network.health import is_serving
from optimist_common.network.server import SERVER_OPTIONS, GrpcServer, bind
from optimist_common.network.settings import NetworkSettings
from optimist_common.settings import load_settings
from tests.common.ipv6 import needs_ipv6


class ExampleSettings(NetworkSettings):
    """A service that listens."""

    section = "example"


def test_a_server_bears_the_pings_that_our_channels_send_on_idle_streams() -> None:
    # gRPC's own limit is five minutes; whoever pings three times within it is cut off.
    least = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least < dict(OPTIONS)["grpc.keepalive_time_ms"]


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_server_listens_on_ipv6(host: str) -> None:
    server = GrpcServer(load_settings(ExampleSettings, ["--host", host]).host, 0)
    port = await server.start()
    await server.set_serving(serving=True)
    try:
        assert await asyncio.to_thread(is_serving, f"[::1]:{port}", 5.0)
    finally:
        await server.stop()


@needs_ipv6
def test_an_address_of_ipv6_that_is_in_use_is_named() -> None:
    with bind("::1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=rf"cannot listen on \[::1\]:{port}: "):
            bind("::1", port)


async def test_what_grpc_cannot_bind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    server = GrpcServer("127.0.0.1", 0)

    def refuse(address: str) -> int:
        raise RuntimeError(f"Failed to bind to address {address}")

    monkeypatch.setattr(server.server, "add_insecure_port", refuse)
    with pytest.raises(SetupError, match=r"cannot listen on 127\.0\.0\.1:0"):
        await server.start()
    await server.server.stop(None)


def test_what_is_no_host_is_named() -> None:
    with pytest.raises(SetupError, match=r"--host: must be an address .*, not 'a\.\.b'"):
        load_settings(ExampleSettings, ["--host", "a..b"])
