"""Lets only calls with a valid key pass."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from optimist_gateway.core.error import ApiError
from optimist_gateway.fronts.grpc.status import Context, abort
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.security.keys import Keys, current_client

_OPEN = "/grpc.health.v1.Health/"
"""Beginning of the methods that anybody may call."""
_ADMIN = frozenset({"/optimist.v1.Inference/SetPriority"})
"""Methods for admin keys only."""
_MESSAGES = {
    "missing_api_key": "You didn't provide an API key. Send it in the metadata as "
    "authorization: Bearer KEY.",
    "invalid_api_key": "Incorrect API key provided.",
    "admin_disabled": "there is no admin key: set --admin-keys-file",
    "permission_denied": "this needs an admin key",
}

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class Authentication(grpc.aio.ServerInterceptor):
    """Asks every call but health checks for a key, if there are keys, and notes whose it is.

    Admin methods need an admin key, whether other calls need a key or not.
    """

    def __init__(self, keys: Keys, metrics: GatewayMetrics) -> None:
        self._keys, self._metrics = keys, metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Passes a call on, or returns a handler that refuses it."""
        details = handler_call_details
        is_admin_call = details.method in _ADMIN
        if is_admin_call and not self._keys.has_admins:
            return self._refusal(403, "admin_disabled")
        if is_admin_call or (self._keys.asks_clients and not details.method.startswith(_OPEN)):
            secret = _shown_key(details)
            client = None if secret is None else self._keys.find(secret)
            if client is None:
                return self._refusal(401, "invalid_api_key" if secret else "missing_api_key")
            if is_admin_call and not client.is_admin:
                return self._refusal(403, "permission_denied")
            current_client.set(client)
        return await continuation(details)

    def _refusal(self, status: int, code: str) -> _Handler:
        self._metrics.requests.labels("none", str(status)).inc()
        self._metrics.refusals.labels(code).inc()
        error = ApiError(status, _MESSAGES[code], code=code)

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
