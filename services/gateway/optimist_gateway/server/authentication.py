"""Asks every request for a key, except those to what is named here."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from optimist_gateway.core.error import ApiError
from optimist_gateway.fronts.openai.errors import error_response
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.observing.request_record import current_record
from optimist_gateway.security.keys import ANONYMOUS, Client, Keys, current_client

PROBES = frozenset({"/health", "/live", "/ready", "/startup"})
METRICS = "/metrics"
# The page's files are the same for everybody; what it asks for, it asks with the user's key.
PAGE, PAGE_FILES = "/", "/page/"
ADMIN = "/admin"


class Authentication:
    """ASGI middleware: goes by the path that routes are found by, never by the URL or Host."""

    def __init__(
        self, app: ASGIApp, keys: Keys, metrics: GatewayMetrics, *, public_metrics: bool
    ) -> None:
        """Takes the application.

        Args:
            app: What answers those who may ask.
            keys: The keys that are valid.
            metrics: Where refusals are counted.
            public_metrics: Whether /metrics needs no key.
        """
        self._app, self._keys, self._metrics = app, keys, metrics
        self._open_paths = PROBES | {PAGE} | ({METRICS} if public_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401 or 403."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            current_client.set(self._find_client(scope))
        except ApiError as error:
            current_record().error = reason = str(error.code)
            self._metrics.requests.labels("none", str(error.status)).inc()
            self._metrics.refusals.labels(reason).inc()
            response = error_response(error, Headers(scope=scope))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _find_client(self, scope: Scope) -> Client:
        """Returns who asks; raises ApiError if he may not."""
        path: str = scope["path"]
        if path in self._open_paths or path.startswith(PAGE_FILES):
            return ANONYMOUS
        if path == ADMIN or path.startswith(ADMIN + "/"):
            return self._admin(scope)
        if not self._keys.asks_clients:
            return ANONYMOUS
        return self._known(scope)

    def _admin(self, scope: Scope) -> Client:
        if not self._keys.has_admins:
            raise ApiError(
                403, "there is no admin key: set --admin-keys-file", code="admin_disabled"
            )
        client = self._known(scope)
        if not client.is_admin:
            raise ApiError(403, "this needs an admin key", code="permission_denied")
        return client

    def _known(self, scope: Scope) -> Client:
        secret = shown_key(scope)
        if secret is None:
            raise ApiError(
                401,
                "You didn't provide an API key. Send it as the header Authorization: Bearer KEY.",
                code="missing_api_key",
            )
        client = self._keys.find(secret)
        if client is None:
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        return client


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
