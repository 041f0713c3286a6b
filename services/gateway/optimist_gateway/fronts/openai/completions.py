"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.fronts.openai.admitted_route import admitted_route
from optimist_gateway.fronts.openai.answering import Answering
from optimist_gateway.fronts.openai.bodies.completion import CompletionBody
from optimist_gateway.fronts.openai.dialect import reason_name
from optimist_gateway.fronts.openai.logprobs import completion_logprobs, join_logprobs
from optimist_gateway.generation.generation import Service

PATH = "/v1/completions"


class CompletionWriter:
    """Writes plain text."""

    is_stateless = True

    def first(self) -> None:
        """Returns nothing: the first chunk is the first text."""
        return

    def chunk(self, piece: Piece, *, even_if_empty: bool) -> dict[str, Any] | None:
        """See `ChoiceWriter.chunk`."""
        reason = reason_name(piece)
        if not (piece.text or reason or even_if_empty):
            return None
        logprobs = completion_logprobs(piece.logprobs)
        return {"text": piece.text, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """See `ChoiceWriter.whole`."""
        text = "".join(piece.text for piece in pieces)
        logprobs = completion_logprobs(join_logprobs(pieces))
        return {"text": text, "logprobs": logprobs, "finish_reason": reason_name(pieces[-1])}


class CompletionDialect:
    """Answers are plain text."""

    endpoint = PATH
    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def writer(self, _request: GenerationRequest) -> CompletionWriter:
        """See `Dialect.writer`."""
        return CompletionWriter()


def completion_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))
    answering = Answering(service, CompletionDialect())

    @router.post(PATH)
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continues a text, whole or as server-sent events."""
        return await answering.answer(request, body.request())

    return router
