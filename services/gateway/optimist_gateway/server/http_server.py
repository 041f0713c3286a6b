"""uvicorn as the gateway runs it, and its end: requests finish before connections close."""

import asyncio
import logging
import ssl
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from optimist_common.network.channel import check_key
from optimist_gateway.core.error import shutting_down
from optimist_gateway.fronts.openai.connection_body import Outbox
from optimist_gateway.server.http_protocol import BoundedProtocol, ConnectionLimits
from optimist_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 2
"""For connections to take what was written, after the last request."""
_POLL_SECONDS = 0.05


def server_config(app: FastAPI, settings: GatewaySettings) -> uvicorn.Config:
    """Returns how uvicorn serves the application; raises SetupError for unusable certificates."""
    limits = ConnectionLimits(
        max_num_connections=settings.max_num_connections,
        max_header_bytes=settings.max_header_bytes,
        max_body_bytes=settings.max_body_bytes,
        read_seconds=settings.read_seconds,
        slow_reader_seconds=settings.slow_reader_seconds,
    )
    # uvicorn calls it as it would the class.
    protocol: Any = partial(
        BoundedProtocol, limits=limits, outbox=Outbox(settings.write_interval_seconds)
    )
    if settings.https_cert:
        check_key(settings.https_cert, settings.https_key, "--https")
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        # Proxies are not believed: nothing goes by a client's address.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSING_SECONDS,
        ssl_certfile=settings.https_cert or None,
        ssl_keyfile=settings.https_key or None,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


class DrainingServer(uvicorn.Server):
    """Ends on a signal once the running requests have ended, or their time is over."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: GatewaySettings) -> None:
        super().__init__(config)
        self._service = app.state.service
        self._grace_seconds, self._drain_seconds = settings.grace_seconds, settings.drain_seconds
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: Any = None) -> None:
        """Starts to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the end; a second signal does not wait for requests."""
        if self._loop is None or self._service.admission.is_closed:
            self.should_exit = True
            return
        self._service.admission.close()
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = asyncio.create_task(self.drain())

    async def drain(self) -> None:
        """Takes no more requests, lets the running ones finish in time, and ends the others."""
        admission = self._service.admission
        admission.close()
        loop = asyncio.get_running_loop()
        started = loop.time()
        if admission.num_requests:
            logger.info("%d requests may finish", admission.num_requests)
        while (age := loop.time() - started) < max(self._grace_seconds, self._drain_seconds):
            is_done = not admission.num_requests or age >= self._grace_seconds
            if self.should_exit or (is_done and age >= self._drain_seconds):
                break
            await asyncio.sleep(_POLL_SECONDS)
        if admission.num_requests:
            logger.warning("%d requests are broken off", admission.num_requests)
            self._service.schedulers.break_off(shutting_down())
        self.should_exit = True
