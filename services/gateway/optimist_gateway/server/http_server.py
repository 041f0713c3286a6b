"""uvicorn as the gateway runs it: its connections, and its end.

Clients may neither stand still nor send without end; requests finish before connections close.
"""

import asyncio
import logging
import ssl
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any

import httptools
import orjson
import uvicorn
from fastapi import FastAPI
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from optimist_common.network.channel import check_key
from optimist_gateway.api.openai.connection_body import DIRECT_BODY, ConnectionBody, Outbox
from optimist_gateway.api.openai.errors import error_body
from optimist_gateway.core.error import ApiError, shutting_down
from optimist_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 2
"""For connections to take what was written, after the last request."""
_POLL_SECONDS = 0.05
MAX_NUM_HEADERS = 128
MAX_OVERHEAD = 8
"""A chunked body may take so many times its length on the wire."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; whoever exceeds them gets one answer and is dropped."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: GatewaySettings,
        outbox: Outbox,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings, self._outbox = settings, outbox
        self._is_reading_head = True
        self._num_bytes = 0
        self._plain_head = b""
        """Of a request that offers another protocol: its head without the offer."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.on_pause = self.on_resume = _nobody

    @property
    def is_paused(self) -> bool:
        """Whether the client has more to read than should be added to."""
        return self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits a connection, or answers that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_num_connections:
            self._refuse(ApiError(503, "too many connections are open", code="overloaded"))
        else:
            self._start_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._stop_read_timer()
        super().connection_lost(exc)
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests."""
        if self.transport.is_closing() or not data:
            return
        if self._is_reading_head and self._read_timer is None:
            self._start_reading()
        self._num_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, ApiError) else self._not_http())
            return
        limits = self._settings
        if self._is_discarding:
            if self._num_bytes > limits.max_header_bytes + limits.max_body_bytes:
                self.transport.close()
        elif self._is_reading_head and self._num_bytes > limits.max_header_bytes:
            self._refuse(_headers_too_large())
        elif self._num_bytes > limits.max_header_bytes + MAX_OVERHEAD * limits.max_body_bytes:
            self._refuse(ApiError(413, "the request body is too large", code="request_too_large"))

    def _parse(self, data: bytes) -> None:
        """Has the callbacks below called.

        The parser takes what follows an offer of another protocol for that protocol. Nobody has to
        accept an offer (RFC 9110, 7.8): such a request is parsed again without it.
        """
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(self._plain_head)

    def _not_http(self) -> ApiError:
        if self.parser.get_method() == b"PRI":
            reason = "this port speaks HTTP/1.1, not HTTP/2; gRPC has a port of its own"
            return ApiError(505, reason, code="http_version_not_supported")
        return ApiError(400, "this is not HTTP", code="invalid_http")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; what trails a chunked body is none, and is left out."""
        if self._is_reading_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts to answer; how long the body takes is the application's concern."""
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        too_long = num_bytes > self._settings.max_header_bytes
        if too_long or len(self.headers) > MAX_NUM_HEADERS:
            raise _headers_too_large()
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise ApiError(501, "this is no proxy: CONNECT is not served", code="not_implemented")
        if self.parser.should_upgrade():
            lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
            lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            self._plain_head = b"\r\n".join([*lines, b"", b""])
            return
        self._is_reading_head = False
        self._stop_read_timer()
        has_chunks = version >= "1.1"
        # Weak, as the connection has the scope: both go with their last use, not with a collection.
        body = ConnectionBody(weakref.proxy(self), self._outbox, has_chunks=has_chunks)
        self.scope["extensions"] = {DIRECT_BODY: {"body": body}}
        super().on_headers_complete()
        if not has_chunks:
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[assignment, method-assign]

    def on_message_complete(self) -> None:
        """Notes that the next byte begins another request."""
        if self._is_reading_head:
            # Its body, if it has one, is not parsed yet.
            return
        super().on_message_complete()
        self._is_reading_head = True
        self._num_bytes = 0

    def pause_writing(self) -> None:
        """Notes that the client does not read as fast as it is written to."""
        super().pause_writing()
        if self._write_timer is None:
            self._watch_reader()
        self.on_pause()

    def resume_writing(self) -> None:
        """Notes that the client reads."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self.on_resume()

    def on_response_complete(self) -> None:
        """Forgets who sent the answer; what is left of the request's body is thrown away.

        The next request's headers have to be there in the same time.
        """
        self.on_pause = self.on_resume = _nobody
        super().on_response_complete()
        if self._is_discarding and self._read_timer is None and not self.transport.is_closing():
            seconds = self._settings.read_seconds
            self._read_timer = self.loop.call_later(seconds, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection between two requests, but not one of which a body is thrown away."""
        if not self._is_discarding:
            super().timeout_keep_alive_handler()

    @property
    def _is_discarding(self) -> bool:
        """Whether the rest of a body comes that was answered without being read."""
        return not self._is_reading_head and self.cycle.response_complete

    def _watch_reader(self) -> None:
        seconds = self._settings.slow_reader_seconds
        num_unread = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(seconds, self._check_reader, num_unread)

    def _check_reader(self, num_unread: int) -> None:
        """Drops a client that has read nothing of what waited for it."""
        if self.transport.get_write_buffer_size() < num_unread:
            self._watch_reader()
        else:
            self.transport.abort()

    def _start_reading(self) -> None:
        self._read_timer = self.loop.call_later(self._settings.read_seconds, self._give_up)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _give_up(self) -> None:
        self._read_timer = None
        reason = "the request's headers did not arrive in time"
        self._refuse(ApiError(408, reason, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answers and closes, unless an answer is under way, which is only cut off."""
        if self.transport.is_closing():
            return
        self._stop_read_timer()
        if self.cycle is None or self.cycle.response_complete:
            body = orjson.dumps(error_body(error))
            head = [
                STATUS_LINE[error.status],
                b"content-type: application/json\r\n",
                b"content-length: %d\r\n" % len(body),
                b"connection: close\r\n",
                b"retry-after: 1\r\nretry-after-ms: 1000\r\n" if error.status == 503 else b"",
                b"\r\n",
            ]
            self.transport.write(b"".join(head) + body)
        self.transport.close()


def _without_chunks(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Returns what sends the answer to a client of HTTP/1.0, which knows no chunks.

    An answer without a length ends with the connection. uvicorn would send it in chunks; without
    them it expects as many bytes as were announced.
    """
    send, has_length = cycle.send, True

    async def sent(message: Any) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return sent


def _headers_too_large() -> ApiError:
    return ApiError(431, "the request's headers are too large", code="headers_too_large")


def _nobody() -> None:
    """Ignores what nobody wants to know."""


def server_config(app: FastAPI, settings: GatewaySettings) -> uvicorn.Config:
    """Returns how uvicorn serves the application; raises SetupError for unusable certificates."""
    # uvicorn calls it as it would the class.
    protocol: Any = partial(
        BoundedProtocol, settings=settings, outbox=Outbox(settings.write_interval_seconds)
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
