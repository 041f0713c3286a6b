"""uvicorn as the gateway runs it: requests finish before connections close."""

import asyncio
import logging
import ssl
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from optimist_common.network.channel import check_key
from optimist_gateway.api.openai.exchange import Outbox
from optimist_gateway.core.error import shutting_down
from optimist_gateway.server.connection import HttpConnection
from optimist_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 2
"""For connections to take what was written, after the last request."""
_POLL_SECONDS = 0.05


def server_config(app: FastAPI, settings: GatewaySettings) -> uvicorn.Config:
    """Returns how uvicorn serves the application; raises SetupError for unusable certificates."""
    # uvicorn calls it as it would the class.
    outbox = Outbox(settings.write_interval_seconds)
    protocol: Any = partial(HttpConnection, settings=settings, outbox=outbox)
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
        self._drain: Future[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the end; a second signal does not wait for requests."""
        if not self.started or self._service.admission.is_closed:
            self.should_exit = True
            return
        self._service.admission.is_closed = True
        loop = asyncio.get_running_loop()
        self._drain = asyncio.run_coroutine_threadsafe(self._finish_requests(), loop)

    async def _finish_requests(self) -> None:
        """Lets the running requests finish in time, and ends the others."""
        admission = self._service.admission
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
            for pool in self._service.pools:
                pool.break_off(shutting_down())
        self.should_exit = True
