"""Layers around the application: names of requests, who may ask, how much, what is noted."""

import re
import uuid
from collections.abc import Collection
from ipaddress import ip_address
from string import ascii_letters, digits

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from optimist_gateway.api.openai.answering import CLIENT_CLOSED_REQUEST
from optimist_gateway.api.openai.errors import error_response
from optimist_gateway.core.error import MAX_PARAM_CHARACTERS, ApiError, printable
from optimist_gateway.core.request import MAX_REQUEST_ID_CHARACTERS
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.observing.request_record import RequestObserver
from optimist_gateway.security.keys import ANONYMOUS, PROBES, Client, Keys, current_client

ANY = "*"
_LOOPBACK_NAMES = ("localhost", "*.localhost")
# The page's files are the same for everybody; what it asks for, it asks with the user's key.
PAGE, PAGE_FILES = "/", "/page/"
METRICS = "/metrics"
ADMIN = "/admin"
_NAME_CHARACTERS = frozenset((ascii_letters + digits + "-_.:/+=@").encode())
_REQUEST_ID = b"x-request-id"


class AllowedHosts:
    """Names by which a server may be called; addresses, and names of the loopback, always may.

    A page of somebody else's can make its own name lead to a server on the loopback (DNS
    rebinding); the browser then lets it ask. It cannot do so with an address, and sends the name as
    the header Host.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Takes names; `*.example.com` is for all below it, `*` for any."""
        given = {name.lower().rstrip(".") for name in (*names, *_LOOPBACK_NAMES)}
        self._allows_any = ANY in given
        self._names = {name for name in given if not name.startswith("*")}
        self._endings = tuple(name[1:] for name in given if name.startswith("*."))

    def allows(self, host: str) -> bool:
        """Returns whether a header Host, with a port or without, is of this server."""
        # Of an address of IPv6 without a port, the end is none.
        name = re.sub(r"(?<!:):\d+$", "", host.lower()).rstrip(".")
        if self._allows_any or name in self._names or name.endswith(self._endings):
            return True
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


class RequestId:
    """ASGI middleware: every answer carries `x-request-id`, errors too.

    A name that a client sends comes back; else it is the name that the endpoint gave, or a new one.
    The endpoint finds the client's as `client_name` in the state of the request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _sane_request_id(scope)
        request_id = given or f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {}).update(request_id=request_id, client_name=given)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                if given or not any(name == _REQUEST_ID for name, _ in headers):
                    headers = [header for header in headers if header[0] != _REQUEST_ID]
                    headers.append((_REQUEST_ID, request_id.encode("ascii")))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, named)


def _sane_request_id(scope: Scope) -> str | None:
    """Returns the client's name of a request, if it sent one that headers and logs can bear."""
    values = [value for name, value in scope["headers"] if name == _REQUEST_ID]
    if len(values) != 1 or not 0 < len(values[0]) <= MAX_REQUEST_ID_CHARACTERS:
        return None
    value: bytes = values[0]
    return value.decode("ascii") if _NAME_CHARACTERS.issuperset(value) else None


class Authentication:
    """ASGI middleware: goes by the path that routes are found by, never by the URL.

    Who needs no key must call the server by one of its names: a browser shows no keys, and else
    lets any page ask.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        hosts: AllowedHosts,
        metrics: GatewayMetrics,
        *,
        checks_hosts: bool,
        public_metrics: bool,
    ) -> None:
        """Takes what answers those who may ask; public metrics need no key.

        Hosts are checked without keys, and with keys if `checks_hosts`.
        """
        self._app, self._keys, self._hosts, self._metrics = app, keys, hosts, metrics
        self._checks_hosts = checks_hosts
        self._open_paths = PROBES | {PAGE} | ({METRICS} if public_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401, 403 or 421."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            current_client.set(self._find_client(scope))
        except ApiError as error:
            response = error_response(error, Headers(scope=scope), self._metrics)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _find_client(self, scope: Scope) -> Client:
        """Returns who asks; raises ApiError if he may not."""
        path: str = scope["path"]
        if path in self._open_paths or path.startswith(PAGE_FILES):
            return ANONYMOUS
        asks_clients = self._keys.asks_clients
        if self._checks_hosts or not asks_clients:
            self._require_own_host(scope)
        needs_admin = path == ADMIN or path.startswith(ADMIN + "/")
        if not needs_admin and not asks_clients:
            return ANONYMOUS
        where = "as the header Authorization: Bearer KEY"
        return self._keys.require(shown_key(scope), where, needs_admin=needs_admin)

    def _require_own_host(self, scope: Scope) -> None:
        """Raises ApiError if the server is called by a name that is not its own."""
        for name, value in scope["headers"]:
            host = value.decode("latin-1")
            if name == b"host" and not self._hosts.allows(host):
                message = (
                    f"the header Host is {printable(host, MAX_PARAM_CHARACTERS)}, which is no name "
                    "of this server: use localhost or an address, or list it in --allowed-hosts"
                )
                raise ApiError(421, message, code="wrong_host")


def shown_key(scope: Scope) -> bytes | None:
    """Returns the key of `Authorization: Bearer` or `x-api-key`; None without exactly one."""
    shown: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, secret = value.partition(b" ")
            if scheme.lower() == b"bearer":
                shown.append(secret.strip())
        elif name == b"x-api-key":
            shown.append(value.strip())
    return shown[0] if len(set(shown)) == 1 and shown[0] else None


OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}
"""What gets a span, and what OpenTelemetry's conventions for generative AI call it."""
MAX_PATH_CHARACTERS = 200
_NOT_OBSERVED = PROBES | {METRICS}


class Observation:
    """Wraps the application; add it last, so that refusals by other layers are seen too."""

    def __init__(self, app: ASGIApp, observer: RequestObserver) -> None:
        self._app, self._observer = app, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http" or scope["path"] in _NOT_OBSERVED:
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        parents = Headers(scope=scope).getlist("traceparent")
        record = self._observer.begin(
            OPERATIONS.get(path, "") if method == "POST" else "",
            {"http.request.method": method, "http.route": path, "url.path": path},
            parents[0] if len(parents) == 1 else "",
        )
        status = CLIENT_CLOSED_REQUEST

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status = 500
            raise
        finally:
            record.outcome = record.outcome or str(status)
            # As it was sent: without characters that could begin another line.
            shown = scope["raw_path"].decode("ascii", "backslashreplace")[:MAX_PATH_CHARACTERS]
            self._observer.end(
                record,
                f"{method} {shown}",
                {"http.response.status_code": status},
                failed=status >= 500 or record.outcome == "broken_stream",
            )
