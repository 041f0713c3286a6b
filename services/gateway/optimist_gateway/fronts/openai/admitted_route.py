"""Refuses what there is no room for before its body is read."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from optimist_gateway.generation.admission import Admission


def admitted_route(admission: Admission) -> type[APIRoute]:
    """Returns the class of routes to what takes places.

    To read, parse and check a body takes longer than all else that a refusal needs, and an
    overloaded gateway would do it for most requests in vain. Whoever needs more places than one is
    refused later, when that is known.
    """

    class AdmittedRoute(APIRoute):
        """Asks for room first."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Returns what answers a request of a client that is known."""
            handle = super().get_route_handler()

            async def admitted(request: Request) -> Response:
                admission.require_room()
                return await handle(request)

            return admitted

    return AdmittedRoute
