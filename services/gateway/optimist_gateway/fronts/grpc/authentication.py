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
        needs_admin = details.method in _ADMIN
        if needs_admin or (self._keys.asks_clients and not details.method.startswith(_OPEN)):
            where = "in the metadata as authorization: Bearer KEY"
            try:
                client = self._keys.require(_shown_key(details), where, needs_admin=needs_admin)
            except ApiError as error:
                return self._refusal(error)
            current_client.set(client)
        return await continuation(details)

    def _refusal(self, error: ApiError) -> _Handler:
        self._metrics.requests.labels("none", str(error.status)).inc()
        self._metrics.refusals.labels(str(error.code)).inc()

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
