"""Answers a generation request, whole or as events; the same for all endpoints."""

import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.fronts.openai.request_id import sane_request_id
from optimist_gateway.fronts.openai.sse import (
    CLIENT_CLOSED_REQUEST,
    AnswerWriter,
    EventStream,
    on_disconnect,
)
from optimist_gateway.generation.admission import Admission
from optimist_gateway.generation.generation import Generation, Service
from optimist_gateway.observing.request_record import current_record


class Answering:
    """Answers the requests of one endpoint."""

    def __init__(self, service: Service, endpoint: str, id_prefix: str) -> None:
        """Takes what requests share, the path, and what the names of answers begin with."""
        self._service, self._endpoint, self._id_prefix = service, endpoint, id_prefix

    async def answer(
        self,
        http_request: Request,
        request: GenerationRequest,
        write: Callable[[Generation], AnswerWriter],
    ) -> Response:
        """Answers one request.

        Args:
            http_request: The request as it came.
            request: What it asks for.
            write: Returns what writes its answer.

        Raises:
            ApiError: Nothing was sent yet and the request is wrong, not admitted, or failed.
        """
        request_id = f"{self._id_prefix}{uuid.uuid4().hex}"
        client_name = sane_request_id(http_request.scope)
        generation = Generation(self._service, request, request_id, client_name)
        writer = write(generation)
        if request.stream:
            seconds = self._service.limits.keep_alive_seconds
            return EventStream(generation, writer, self._count, seconds)
        async with (
            on_disconnect(http_request.receive, generation.leave),
            generation.running(writer.collect),
        ):
            await generation.choices.wait()
        if generation.left:
            self._count("disconnected")
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        data = orjson.dumps(writer.whole())
        self._count("200")
        headers = {"x-request-id": generation.request_id}
        return Response(data, headers=headers, media_type="application/json")

    def _count(self, outcome: str) -> None:
        current_record().outcome = outcome
        self._service.metrics.requests.labels(self._endpoint, outcome).inc()


def admitted_route(admission: Admission) -> type[APIRoute]:
    """Returns the class of routes to what the request limit counts.

    To read, parse and check a body takes longer than all else that a refusal needs, and an
    overloaded gateway would do it for most requests in vain. Whoever needs more than one is
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
