"""Answers a generation request, whole or as events; the same for all endpoints."""

import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.request_id import sane_request_id
from optimist_gateway.fronts.openai.servable import require_servable
from optimist_gateway.fronts.openai.sse import (
    CLIENT_CLOSED_REQUEST,
    EventStream,
    EventWriter,
    on_disconnect,
)
from optimist_gateway.generation.admission import Admission
from optimist_gateway.generation.field_names import AS_THEY_ARE, FieldNames
from optimist_gateway.generation.generation import EncodePrompts, Generation, Service
from optimist_gateway.observing.request_record import current_record


class AnswerWriter(EventWriter, Protocol):
    """Writes one answer, as events or, of the pieces that it has collected, as a whole."""

    def collect(self, index: int, piece: Piece) -> None:
        """Takes what a step adds to a choice of an answer that is sent as a whole."""
        ...

    def whole(self) -> dict[str, Any]:
        """Returns the whole answer."""
        ...


class Answering:
    """Answers the requests of one endpoint."""

    def __init__(self, service: Service, endpoint: str, id_prefix: str) -> None:
        """Takes what requests share, the path, and what the names of answers begin with."""
        self._service, self._endpoint, self._id_prefix = service, endpoint, id_prefix

    async def answer(
        self,
        request: Request,
        body: GenerationBody,
        encode_prompts: EncodePrompts,
        write: Callable[[Generation], AnswerWriter],
        names: FieldNames = AS_THEY_ARE,
    ) -> Response:
        """Answers one request.

        Args:
            request: The request.
            body: What it asks for.
            encode_prompts: Returns its prompts.
            write: Returns what writes its answer.
            names: What errors call the fields of the body.

        Raises:
            ApiError: Nothing was sent yet and the request is wrong, not admitted, or failed.
        """
        require_servable(self._service, body)
        request_id = f"{self._id_prefix}{uuid.uuid4().hex}"
        client_name = sane_request_id(request.scope)
        generation = Generation(
            self._service, body, encode_prompts, request_id, names, client_name=client_name
        )
        writer = write(generation)
        if body.stream:
            seconds = self._service.limits.keep_alive_seconds
            return EventStream(generation, writer, self._count, seconds)
        async with (
            on_disconnect(request.receive, generation.leave),
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
