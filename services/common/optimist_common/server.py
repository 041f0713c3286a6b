"""How every service serves gRPC: bounded messages, health, a clean end on SIGTERM and SIGINT."""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from optimist_common.channel import OPTIONS
from optimist_common.errors import SetupError

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0

SERVER_OPTIONS: list[tuple[str, int]] = [
    *OPTIONS,
    # SO_REUSEPORT would let two services share a port and each get half of the calls.
    ("grpc.so_reuseport", 0),
    # An idle stream is pinged by its client (`optimist_common.channel`). More often than every five
    # minutes gRPC takes for an attack unless it is told, and closes the connection after a minute.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]


class GrpcServer:
    """A grpc.aio server with the health service; not serving until `set_serving(True)`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    async def start(self) -> int:
        """Binds and starts; returns the bound port (of use when the port was 0).

        Raises:
            SetupError: The address cannot be bound.
        """
        await self.set_serving(serving=False)
        # gRPC would print lines of its own.
        require_free(self._host, self._port)
        port = self.server.add_insecure_port(f"{self._host}:{self._port}")
        await self.server.start()
        return port

    async def set_serving(self, *, serving: bool) -> None:
        """Sets what the health service answers for the whole server."""
        status = health_pb2.HealthCheckResponse
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    async def stop(self) -> None:
        """Answers NOT_SERVING, then ends calls after a grace period."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(GRACE_SECONDS)


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to an address and does not listen yet.

    Raises:
        SetupError: The port is in use, or the host is not one of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        ) from None
    return bound


def require_free(host: str, port: int) -> None:
    """Raises SetupError, as `bind` does, if an address cannot be listened on."""
    bind(host, port).close()


async def until_signal() -> None:
    """Waits for SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def run_service(serve: Callable[[], Awaitable[None]]) -> None:
    """Runs a service's main coroutine on uvloop until it returns."""
    import uvloop

    uvloop.run(_as_coroutine(serve))


async def _as_coroutine(serve: Callable[[], Awaitable[None]]) -> None:
    await serve()
