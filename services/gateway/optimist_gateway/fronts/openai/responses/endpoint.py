"""POST /v1/responses."""

import time
import uuid
from collections.abc import Iterable
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.error import ApiError
from optimist_gateway.fronts.openai.admitted_route import admitted_route
from optimist_gateway.fronts.openai.chat import chat_writer
from optimist_gateway.fronts.openai.chunk_writer import SYNTHETIC_FINGERPRINT
from optimist_gateway.fronts.openai.errors import error_body
from optimist_gateway.fronts.openai.provenance import provenance
from optimist_gateway.fronts.openai.request_id import sane_request_id
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
from optimist_gateway.fronts.openai.responses.output import Event
from optimist_gateway.fronts.openai.responses.request import response_request
from optimist_gateway.fronts.openai.responses.writer import ResponseWriter
from optimist_gateway.fronts.openai.sse import (
    CLIENT_CLOSED_REQUEST,
    EventStream,
    event,
    on_disconnect,
)
from optimist_gateway.generation.generation import Generation, Service
from optimist_gateway.observing.request_record import current_record

PATH = "/v1/responses"


class ResponseAnswering:
    """Answers one request, whole or as typed events."""

    def __init__(
        self,
        service: Service,
        body: ResponsesBody,
        client_name: str | None,
    ) -> None:
        self._service = service
        request = response_request(body)
        self._chunks = chat_writer(request, service.tokenizer.tool_format)
        request_id = f"resp_{uuid.uuid4().hex}"
        self._generation = Generation(service, request, request_id, client_name)
        self._writer = ResponseWriter(request_id, body, service.model_name, int(time.time()))
        self._has_begun = False

    async def whole(self, request: Request) -> Response:
        """Answers with the response; raises ApiError if there is none."""
        generation = self._generation
        async with (
            on_disconnect(request.receive, generation.leave),
            generation.running(self._collect),
        ):
            await generation.choices.wait()
        if generation.left:
            self._count("disconnected")
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        self._finish()
        self._count("200")
        return Response(
            orjson.dumps(self._writer.response),
            headers={"x-request-id": generation.request_id},
            media_type="application/json",
        )

    def stream(self) -> Response:
        """Answers with events; what goes wrong before the first one is raised as ApiError."""
        seconds = self._service.limits.keep_alive_seconds
        return EventStream(self._generation, self, self._count, seconds)

    def piece(self, _index: int, piece: Piece) -> bytes:
        """See `EventWriter.piece`."""
        begun = [] if self._has_begun else self._writer.begin()
        self._has_begun = True
        return _wire([*begun, *self._add(piece)])

    def finish(self) -> bytes:
        """See `EventWriter.finish`."""
        return _wire(self._finish())

    def fail(self, error: ApiError) -> bytes:
        """See `EventWriter.fail`."""
        if not self._has_begun:
            return event(error_body(error))
        return _wire(self._writer.fail(error))

    def _collect(self, _index: int, piece: Piece) -> None:
        self._add(piece)

    def _add(self, piece: Piece) -> list[Event]:
        if self._generation.is_synthetic:
            self._writer.response["system_fingerprint"] = SYNTHETIC_FINGERPRINT
        chunk = self._chunks.chunk(piece, even_if_empty=bool(piece.segments))
        if chunk is None:
            return []
        return self._writer.add(chunk, provenance(piece.segments or []))

    def _finish(self) -> list[Event]:
        usage = self._generation.usage().to_api(with_num_passes=False)
        if self._generation.request.include_speculation:
            usage["speculation"] = self._generation.speculation().to_api()
        return self._writer.finish(usage, int(time.time()))

    def _count(self, outcome: str) -> None:
        current_record().outcome = outcome
        self._service.metrics.requests.labels(PATH, outcome).inc()


def _wire(events: Iterable[dict[str, Any]]) -> bytes:
    """Returns events as they go over the wire."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
        for event in events
    )


def responses_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))

    @router.post(PATH)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        """Answers a conversation with messages and calls of functions; keeps nothing of it."""
        answering = ResponseAnswering(service, body, sane_request_id(request.scope))
        return answering.stream() if body.stream else await answering.whole(request)

    return router
