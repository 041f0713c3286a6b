"""Answers a generation request, whole or in chunks; the same for both endpoints."""

import uuid
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.provenance import join_segments
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.chunk_writer import (
    ChunkWriter,
    answer_header,
    final_usage,
    token_fields,
)
from optimist_gateway.fronts.openai.dialect import Dialect
from optimist_gateway.fronts.openai.provenance import provenance
from optimist_gateway.fronts.openai.request_id import sane_request_id
from optimist_gateway.fronts.openai.servable import require_servable
from optimist_gateway.fronts.openai.sse import CLIENT_CLOSED_REQUEST, EventStream, on_disconnect
from optimist_gateway.generation.generation import EncodePrompts, Generation, Service
from optimist_gateway.observing.request_record import current_record


class Answering:
    """Answers the requests of one endpoint."""

    def __init__(self, service: Service, dialect: Dialect) -> None:
        self._service = service
        self._dialect = dialect

    async def answer(
        self, request: Request, body: GenerationBody, encode_prompts: EncodePrompts
    ) -> Response:
        """Answers one request.

        Raises:
            ApiError: Nothing was sent yet and the request is wrong, not admitted, or failed.
        """
        require_servable(self._service, body)
        request_id = f"{self._dialect.id_prefix}-{uuid.uuid4().hex}"
        name = sane_request_id(request.scope)
        generation = Generation(self._service, body, encode_prompts, request_id, client_name=name)
        if body.stream:
            return EventStream(
                generation,
                ChunkWriter(generation, self._dialect, self._service.model_name),
                self._count,
                self._service.limits.keep_alive_seconds,
            )
        return await self._whole(request, generation)

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
        choice = {"index": index, **self._dialect.writer(generation.body).whole(pieces)}
        if generation.body.return_token_ids:
            choice |= token_fields(pieces)
        if generation.body.include_provenance:
            segments = [segment for piece in pieces for segment in piece.segments or ()]
            choice["provenance"] = provenance(join_segments(segments))
        return choice

    def _count(self, outcome: str) -> None:
        current_record().outcome = outcome
        self._service.metrics.requests.labels(self._dialect.endpoint, outcome).inc()
