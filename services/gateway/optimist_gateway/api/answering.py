"""Answers a generation request, whole or in chunks; the same for both endpoints."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from optimist_gateway.api.dialect import ChoiceWriter, Dialect
from optimist_gateway.api.errors import ApiError
from optimist_gateway.api.provenance import provenance
from optimist_gateway.api.requests import GenerationBody
from optimist_gateway.api.servable import require_servable
from optimist_gateway.api.sse import (
    CLIENT_CLOSED_REQUEST,
    DONE,
    EventStream,
    chunk_beginning,
    chunk_event,
    event,
    on_disconnect,
)
from optimist_gateway.core.answer import Piece
from optimist_gateway.core.provenance import join_segments
from optimist_gateway.generation import EncodePrompts, Generation, Service
from optimist_gateway.observing.request_record import current_record

SYNTHETIC_FINGERPRINT = "synthetic-acceptance"
"""Says that drafts were accepted by chance, so that the text is meaningless."""


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
        generation = Generation(self._service, body, encode_prompts, request_id)
        if body.stream:
            return EventStream(
                self._events(generation),
                generation.leave,
                generation.request_id,
                self._service.limits.keep_alive_seconds,
            )
        return await self._whole(request, generation)

    async def _whole(self, request: Request, generation: Generation) -> Response:
        pieces: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
        async with (
            on_disconnect(request.receive, generation.leave),
            aclosing(generation.pieces()) as arriving,
        ):
            async for index, piece in arriving:
                pieces[index].append(piece)
        if generation.left:
            self._count("disconnected")
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        data = self._header(generation, self._dialect.whole_object) | {
            "choices": [
                self._whole_choice(generation, index, pieces[chosen])
                for index, chosen in enumerate(generation.chosen())
            ],
            "usage": _final_usage(generation),
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
            choice |= {
                "token_ids": [token for piece in pieces for token in piece.token_ids],
                "num_accepted_tokens": sum(piece.num_accepted_tokens for piece in pieces),
                "predicted_text_length": sum(piece.predicted_text_length for piece in pieces),
            }
        if generation.body.include_provenance:
            segments = [segment for piece in pieces for segment in piece.segments or ()]
            choice["provenance"] = provenance(join_segments(segments))
        return choice

    async def _events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the events of one stream; raises ApiError only before the first one."""
        options = generation.body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        continuous = with_usage and options is not None and bool(options.continuous_usage_stats)
        header = self._header(generation, self._dialect.chunk_object)
        if with_usage:
            header["usage"] = None
        beginning = b""
        writers: dict[int, ChoiceWriter] = {}
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for index, piece in pieces:
                    if continuous:
                        header["usage"] = _usage(generation)
                    if continuous or not beginning:
                        header |= _fingerprint(generation)
                        beginning = chunk_beginning(header)
                    for choice in self._chunks(generation, index, piece, writers):
                        yield chunk_event(beginning, choice)
        except ApiError as error:
            if not writers:
                raise
            current_record().error = error.code or ""
            self._count("broken_stream")
            yield event(error.body())
            return
        if generation.left:
            self._count("disconnected")
            return
        if with_usage:
            yield event(header | {"choices": [], "usage": _final_usage(generation)})
        self._count("200")
        yield DONE

    def _chunks(
        self, generation: Generation, index: int, piece: Piece, writers: dict[int, ChoiceWriter]
    ) -> list[dict[str, Any]]:
        """Returns the choices that tell of a piece; adds the writers of those that start."""
        chunks = []
        writer = writers.get(index)
        if writer is None:
            writer = writers[index] = self._dialect.writer(generation.body)
            first = writer.first()
            if first is not None:
                chunks.append({"index": index, **first})
        tells_tokens = (
            generation.body.return_token_ids
            or piece.logprobs is not None
            or piece.segments is not None
        )
        chunk = writer.chunk(piece, even_if_empty=bool(tells_tokens and piece.token_ids))
        if chunk is None:
            return chunks
        if generation.body.return_token_ids:
            chunk |= {
                "token_ids": piece.token_ids,
                "num_accepted_tokens": piece.num_accepted_tokens,
                "predicted_text_length": piece.predicted_text_length,
            }
        if piece.segments is not None:
            chunk["provenance"] = provenance(piece.segments)
        return [*chunks, {"index": index, **chunk}]

    def _header(self, generation: Generation, kind: str) -> dict[str, Any]:
        return {
            "id": generation.request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self._service.model_name,
            **_fingerprint(generation),
        }

    def _count(self, outcome: str) -> None:
        current_record().outcome = outcome
        self._service.metrics.requests.labels(self._dialect.endpoint, outcome).inc()


def _fingerprint(generation: Generation) -> dict[str, str]:
    """Returns what marks an answer as one of a benchmark."""
    return {"system_fingerprint": SYNTHETIC_FINGERPRINT} if generation.is_synthetic else {}


def _usage(generation: Generation) -> dict[str, Any]:
    return generation.usage().to_api(with_num_passes=bool(generation.body.return_token_ids))


def _final_usage(generation: Generation) -> dict[str, Any]:
    usage = _usage(generation)
    if generation.body.include_speculation:
        usage["speculation"] = generation.speculation().to_api()
    return usage
