"""How every service serves gRPC: bounded messages, health, a clean end on SIGTERM and SIGINT."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from optimist_common.errors import SetupError
from optimist_common.network.channel import OPTIONS, Tls
from optimist_common.network.endpoints import join_address

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 1.0
"""Between two looks at whether a service's work stands still."""
CANCEL_SECONDS = 5.0
"""Longest wait for calls that were cancelled."""
LIVENESS = "liveness"
"""Name of the health service that says whether a process should be started again."""
STEPS = "steps"
"""Name of the one that says whether steps end, of this process or of those that it relies on."""

SERVER_OPTIONS: list[tuple[str, int]] = [
    *OPTIONS,
    # SO_REUSEPORT would let two services share a port and each get half of the calls.
    ("grpc.so_reuseport", 0),
    # An idle stream is pinged by its client (see `channel.py`). By default gRPC takes pings more
    # often than every five minutes for an attack, and closes the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]


class GrpcServer:
    """A grpc.aio server with the health service; not serving until `set_serving(True)`.

    By the name LIVENESS it is alive from its start until `set_alive(False)`; by the name STEPS its
    steps end until `set_stuck(True)`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: Tls | None = None,
        *,
        options: Sequence[tuple[str, int]] = (),
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Prepares a server; port 0 takes a free one, and without keys it serves plaintext.

        Its options, gRPC's, go before those of every server.
        """
        self._host, self._port, self._tls = host, port, tls
        # Of an option that is given twice, gRPC takes the first.
        merged = dict(SERVER_OPTIONS) | dict(options)
        self.server = grpc.aio.server(interceptors=list(interceptors), options=list(merged.items()))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    async def start(self) -> int:
        """Binds and starts; returns the bound port (of use when the port was 0).

        Raises:
            SetupError: The address cannot be bound.
        """
        await self.set_serving(serving=False)
        await self.set_alive(alive=True)
        await self.set_stuck(stuck=False)
        # gRPC would print lines of its own.
        require_free(self._host, self._port)
        address = join_address(self._host, self._port)
        try:
            if self._tls is None:
                port = self.server.add_insecure_port(address)
            else:
                port = self.server.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError:
            reason = f"cannot listen on {address}; choose another --port or --host"
            raise SetupError(reason) from None
        await self.server.start()
        return port

    async def set_serving(self, *, serving: bool) -> None:
        """Sets what the health service answers for the whole server."""
        await self._set("", serving)

    async def set_alive(self, *, alive: bool) -> None:
        """Sets what the health service answers by the name LIVENESS."""
        await self._set(LIVENESS, alive)

    async def set_stuck(self, *, stuck: bool) -> None:
        """Sets what the health service answers by the name STEPS."""
        await self._set(STEPS, not stuck)

    async def _set(self, name: str, good: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(name, status.SERVING if good else status.NOT_SERVING)

    async def stop(self) -> None:
        """Answers NOT_SERVING, then ends calls after a grace period; alive it is to the end."""
        await self.set_serving(serving=False)
        await self.end_calls(GRACE_SECONDS)

    async def end_calls(self, grace_seconds: float) -> None:
        """Stops the server; its calls may go on for a grace period, and are cancelled then.

        Seldom, a cancelled call never ends for gRPC; it is not waited for.
        """
        stopping = asyncio.create_task(self.server.stop(grace_seconds))
        await asyncio.wait({stopping}, timeout=grace_seconds + CANCEL_SECONDS)
        if stopping.done():
            stopping.result()
        else:
            logger.warning(
                "gRPC has not ended all calls %g s after they were cancelled", CANCEL_SECONDS
            )


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Returns a socket that is bound and does not listen yet; port 0 takes a free one.

    Raises:
        SetupError: The port, which `flag` sets, is in use, or the host is not one of this machine.
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
            f"cannot listen on {join_address(host, port)}: {error.strerror}; "
            f"choose another {flag} or --host"
        ) from None
    return bound


def require_free(host: str, port: int, flag: str = "--port") -> None:
    """Raises SetupError, as `bind` does, if an address cannot be listened on."""
    bind(host, port, flag).close()


async def until_signal() -> None:
    """Waits for SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def run_service(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a service's main coroutine, its process's last work, on uvloop until it returns."""
    import uvloop

    uvloop.run(serve())
    # The process ends now: collecting what it has imported would take a worker a second.
    gc.freeze()


async def watch_for_hangs(
    server: GrpcServer,
    seconds_at_work: Callable[[], float],
    hang_seconds: float,
    *,
    is_own: bool,
) -> None:
    """Takes a service off, and says that its steps do not end, while one takes too long.

    Returns never. The server must be serving.

    Args:
        server: Of the service.
        seconds_at_work: Returns how long the running step has taken, 0 if none runs.
        hang_seconds: A step of more is taken for stuck.
        is_own: Whether the process runs the steps itself. It is not alive then either: starting it
            again mends it.
    """
    hangs = False
    while True:
        await asyncio.sleep(min(hang_seconds / 4, LONGEST_PAUSE_SECONDS))
        seconds = seconds_at_work()
        if (seconds > hang_seconds) is hangs:
            continue
        hangs = not hangs
        if hangs:
            logger.critical("a step has not ended for %.0f seconds", seconds)
        else:
            logger.warning("steps end again")
        # Who hears that it serves no more can ask whether it hangs.
        if is_own:
            await server.set_alive(alive=not hangs)
        await server.set_stuck(stuck=hangs)
        await server.set_serving(serving=not hangs)
