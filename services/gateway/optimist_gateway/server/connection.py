"""Connections of HTTP/1 clients, bounded in number, size and time.

Whoever exceeds a limit gets one answer and is dropped. uvicorn accepts connections, and makes an
`HttpConnection` of each.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.server import ServerState

from optimist_gateway.api.openai.errors import error_body
from optimist_gateway.api.openai.exchange import STATUS_LINES, Exchange, Flow, Outbox, nobody
from optimist_gateway.core.error import FAILED, ApiError
from optimist_gateway.settings import GatewaySettings

MAX_NUM_HEADERS = 128
MAX_OVERHEAD = 8
"""A chunked body may take so many times its length on the wire."""
IDLE_SECONDS = 5.0
"""How long a connection is kept between two requests."""


class HttpConnection(asyncio.Protocol):
    """One connection: parses requests, answers them one by one, and keeps the limits."""

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
        self._app: Any = config.loaded_app
        self._scheme = "https" if config.is_ssl else "http"
        self._server, self._app_state = server_state, app_state
        self._settings, self._outbox = settings, outbox
        self._loop = asyncio.get_running_loop()
        self._parser: Any = _new_parser(self)
        self.transport: asyncio.Transport
        self.flow: Flow
        self._exchanges: deque[Exchange] = deque()
        """The request that is answered, and those that wait."""
        self._url, self._headers = b"", list[tuple[bytes, bytes]]()
        self._plain_head = b""
        """Of a request that offers another protocol: its head without the offer."""
        self._reading: Exchange | None = None
        """Whose body comes; None between two requests and in a head."""
        self._num_bytes = 0
        """Of the request that comes."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the wait for what the client is to send."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits a connection, or answers that there are too many."""
        self.transport = transport
        self.flow = Flow(transport, self._settings.slow_reader_seconds)
        self._server.connections.add(self)  # type: ignore[arg-type]
        if len(self._server.connections) > self._settings.max_num_connections:
            self._refuse(ApiError(503, "too many connections are open", code="overloaded"))
        else:
            self._wait(self._settings.read_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection, and tells who answers."""
        self._server.connections.discard(self)
        self._stop_waiting()
        for exchange in self._exchanges:
            exchange.leave()
        self._exchanges.clear()
        self._reading = self._parser = None
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """Closes once the request that runs is answered."""
        if self._exchanges:
            self._exchanges[0].keeps_alive = False
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests."""
        if self.transport.is_closing():
            return
        if self._reading is None and not self._num_bytes:
            self._wait(self._settings.read_seconds, self._give_up)
        self._num_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, ApiError) else self._not_http())
            return
        limits = self._settings
        if self._reading is None:
            if self._num_bytes > limits.max_header_bytes:
                self._refuse(_headers_too_large())
        elif self._reading.has_ended:
            if self._num_bytes > limits.max_header_bytes + limits.max_body_bytes:
                self.transport.close()
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
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            self._parser = _new_parser(self)
            self._parser.feed_data(self._plain_head)

    def _not_http(self) -> ApiError:
        if self._parser.get_method() == b"PRI":
            reason = "this port speaks HTTP/1.1, not HTTP/2; gRPC has a port of its own"
            return ApiError(505, reason, code="http_version_not_supported")
        return ApiError(400, "this is not HTTP", code="invalid_http")

    def on_message_begin(self) -> None:
        """Begins a head."""
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """Takes a part of the request line."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; what trails a chunked body is none, and is left out."""
        if self._reading is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Starts to answer; how long the body takes is the application's concern."""
        url, headers = self._url, self._headers
        num_bytes = len(url) + sum(len(name) + len(value) for name, value in headers)
        if num_bytes > self._settings.max_header_bytes or len(headers) > MAX_NUM_HEADERS:
            raise _headers_too_large()
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            raise ApiError(501, "this is no proxy: CONNECT is not served", code="not_implemented")
        if self._parser.should_upgrade():
            lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
            lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
            self._plain_head = b"\r\n".join([*lines, b"", b""])
            return
        self._stop_waiting()
        keeps_alive = version != "1.0" and self._parser.should_keep_alive()
        exchange = Exchange(
            self._scope(method, version),
            self.flow,
            self._outbox,
            self._server.default_headers,
            self._next,
            has_body=method != b"HEAD",
            keeps_alive=keeps_alive,
        )
        self._reading = exchange
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._start(exchange)
        else:
            self.flow.hold()

    def _scope(self, method: bytes, version: str) -> dict[str, Any]:
        url = httptools.parse_url(self._url)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            # The body of the answer to HEAD is left out.
            "method": "GET" if method == b"HEAD" else method.decode("ascii"),
            "scheme": self._scheme,
            "path": _path(url.path),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "client": _address(self.transport, "peername"),
            "server": _address(self.transport, "sockname"),
            "state": self._app_state.copy(),
        }

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body; what is answered already throws the rest away."""
        if self._reading is not None and not self._reading.has_ended:
            self._reading.add(body)

    def on_message_complete(self) -> None:
        """Notes that the next byte begins another request."""
        exchange = self._reading
        if exchange is None:
            # The body of a request with an offer is not parsed yet.
            return
        self._reading, self._num_bytes = None, 0
        exchange.is_whole = True
        exchange.arrived.set()
        if exchange.has_ended and not self._exchanges:
            self._wait(IDLE_SECONDS, self.transport.close)

    def _start(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self._app))
        self._server.tasks.add(task)
        task.add_done_callback(partial(self._end, exchange))

    def _end(self, exchange: Exchange, task: "asyncio.Task[None]") -> None:
        self._server.tasks.discard(task)
        if not exchange.has_ended:
            self._refuse(ApiError(500, FAILED, code="internal"))

    def _next(self) -> None:
        """Goes on when an answer is complete; the rest of its body has to come in time."""
        self.flow.on_pause = self.flow.on_resume = nobody
        self._exchanges.popleft()
        if self.transport.is_closing():
            return
        self.flow.release()
        if self._exchanges:
            self._start(self._exchanges[0])
        elif self._reading is not None:
            self._wait(self._settings.read_seconds, self.transport.close)
        elif not self._num_bytes:
            self._wait(IDLE_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        """Notes that the client does not read as fast as it is written to."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Notes that the client reads."""
        self.flow.resume_writing()

    def _wait(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(seconds, give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        reason = "the request's headers did not arrive in time"
        self._refuse(ApiError(408, reason, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answers and closes, unless an answer is under way, which is only cut off."""
        if self.transport.is_closing():
            return
        self._stop_waiting()
        if not self._exchanges or not self._exchanges[0].has_begun:
            body = orjson.dumps(error_body(error))
            head = [
                STATUS_LINES[error.status],
                b"content-type: application/json\r\n",
                b"content-length: %d\r\n" % len(body),
                b"connection: close\r\n",
                b"retry-after: 1\r\nretry-after-ms: 1000\r\n" if error.status == 503 else b"",
                b"\r\n",
            ]
            self.transport.write(b"".join(head) + body)
        self.transport.close()


def _new_parser(connection: HttpConnection) -> Any:
    parser = httptools.HttpRequestParser(connection)
    # What follows a request that closes is looked at, too.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _path(raw: bytes) -> str:
    """Returns a path without the slashes that base URLs often have too many of."""
    return re.sub("//+", "/", unquote(raw.decode("ascii"))).rstrip("/") or "/"


def _address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    address = transport.get_extra_info(name)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


def _headers_too_large() -> ApiError:
    return ApiError(431, "the request's headers are too large", code="headers_too_large")
