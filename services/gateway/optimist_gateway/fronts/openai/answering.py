"""Answers a generation request, whole or in chunks; the same for both endpoints."""

import uuid
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.provenance import join_segments
from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.fronts.openai.chunk_writer import (
    ChunkWriter,
    answer_header,
    final_usage,
    token_fields,
)
from optimist_gateway.fronts.openai.dialect import Dialect
from optimist_gateway.fronts.openai.provenance import provenance
from optimist_gateway.fronts.openai.request_id import sane_request_id
from optimist_gateway.fronts.openai.sse import CLIENT_CLOSED_REQUEST, EventStream, on_disconnect
from optimist_gateway.generation.generation import Generation, Service
from optimist_gateway.observing.request_record import current_record


class Answering:
    """Answers the requests of one endpoint."""

    def __init__(self, service: Service, dialect: Dialect) -> None:
        self._service = service
        self._dialect = dialect

    async def answer(self, http_request: Request, request: GenerationRequest) -> Response:
        """Answers one request.

        Raises:
            ApiError: Nothing was sent yet and the request is wrong, not admitted, or failed.
        """
        request_id = f"{self._dialect.id_prefix}-{uuid.uuid4().hex}"
        name = sane_request_id(http_request.scope)
        generation = Generation(self._service, request, request_id, name)
        if request.stream:
            return EventStream(
                generation,
                ChunkWriter(generation, self._dialect, self._service.model_name),
                self._count,
                self._service.limits.keep_alive_seconds,
            )
        return await self._whole(http_request, generation)

    async def _whole(self, request: Request, generation: Generation) -> Response:
        pieces: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
        async with (
            on_disconnect(request.receive, generation.leave),
            generation.running(lambda index, piece: pieces[index].append(piece)),
        ):
            await generation.choices.wait()
        if generation.left:
            self._count("disconnected")
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        header = answer_header(generation, self._dialect.whole_object, self._service.model_name)
        data = header | {
            "choices": [
                self._whole_choice(generation, index, pieces[chosen])
                for index, chosen in enumerate(generation.chosen())
            ],
            "usage": final_usage(generation),
        }
        self._count("200")
        return Response(
            orjson.dumps(data),
            headers={"x-request-id": generation.request_id},
            media_type="application/json",
        )

    def _whole_choice(
        self, generation: Generation, index: int, pieces: list[Piece]
    ) -> dict[str, Any]:
        choice = {"index": index, **self._dialect.writer(generation.request).whole(pieces)}
        if generation.request.return_token_ids:
            choice |= token_fields(pieces)
        if generation.request.include_provenance:
            segments = [segment for piece in pieces for segment in piece.segments or ()]
            choice["provenance"] = provenance(join_segments(segments))
        return choice

    def _count(self, outcome: str) -> None:
        current_record().outcome = outcome
        self._service.metrics.requests.labels(self._dialect.endpoint, outcome).inc()
