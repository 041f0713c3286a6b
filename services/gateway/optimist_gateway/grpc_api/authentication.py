"""Lets only calls with a valid key pass."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from optimist_gateway.api.errors import ApiError
from optimist_gateway.grpc_api.status import Context, abort
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.security.client import current_client
from optimist_gateway.security.keys import Keys

_OPEN = "/grpc.health.v1.Health/"
"""Beginning of the methods that anybody may call."""
_MESSAGES = {
    "missing_api_key": "You didn't provide an API key. Send it in the metadata as "
    "authorization: Bearer KEY.",
    "invalid_api_key": "Incorrect API key provided.",
}

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class Authentication(grpc.aio.ServerInterceptor):
    """Asks every call but health checks for a key, if there are keys, and notes whose it is."""

    def __init__(self, keys: Keys, metrics: GatewayMetrics) -> None:
        self._keys, self._metrics = keys, metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Passes a call on, or returns a handler that refuses it."""
        details = handler_call_details
        if self._keys.asks_clients and not details.method.startswith(_OPEN):
            secret = _shown_key(details)
            client = None if secret is None else self._keys.find(secret)
            if client is None:
                return self._refusal(has_key=secret is not None)
            current_client.set(client)
        return await continuation(details)

    def _refusal(self, *, has_key: bool) -> _Handler:
        code = "invalid_api_key" if has_key else "missing_api_key"
        self._metrics.requests.labels("none", "401").inc()
        self._metrics.refusals.labels(code).inc()
        error = ApiError(401, _MESSAGES[code], code=code)

        async def refuse(_request: Any, context: Context) -> None:
            await abort(context, error)

        return grpc.unary_unary_rpc_method_handler(refuse)


def _shown_key(details: grpc.HandlerCallDetails) -> bytes | None:
    """Returns the key of `authorization: Bearer`; None without exactly one."""
    shown = set()
    for key, value in details.invocation_metadata:
        scheme, _, secret = str(value).partition(" ")
        if key == "authorization" and scheme.lower() == "bearer":
            shown.add(secret.strip())
    return shown.pop().encode() if len(shown) == 1 else None
