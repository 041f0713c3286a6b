"""Servers on free ports, for tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from optimist_common.network.channel import Tls
from optimist_common.network.endpoints import join_address
from optimist_common.network.server import GrpcServer


@asynccontextmanager
async def serve(
    tls: Tls | None = None,
    host: str = "127.0.0.1",
    *,
    add: Callable[[Any], None] | None = None,
    serving: bool = True,
) -> AsyncIterator[tuple[GrpcServer, str]]:
    """Runs a server, to which `add` adds a servicer; returns it and its address."""
    server = GrpcServer(host, 0, tls)
    if add is not None:
        add(server.server)
    port = await server.start()
    await server.set_serving(serving=serving)
    try:
        yield server, join_address(host, port)
    finally:
        await server.stop()
