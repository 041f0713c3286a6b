"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.fronts.openai.answer_parts import (
    CompletionLogprobs,
    completion_logprobs,
    join_logprobs,
)
from optimist_gateway.fronts.openai.answering import Answering, admitted_route
from optimist_gateway.fronts.openai.bodies.completion import CompletionBody
from optimist_gateway.fronts.openai.chunk_writer import (
    ChoiceAnswer,
    ChoicesAnswer,
    ChoicesWriter,
    reason_name,
)
from optimist_gateway.generation.generation import Service

PATH = "/v1/completions"


class CompletionChoice(ChoiceAnswer):
    """One continuation."""

    text: str
    logprobs: CompletionLogprobs | None


class Completion(ChoicesAnswer):
    """A whole answer to one prompt or several."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


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


def completion_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))
    answering = Answering(service, PATH, "cmpl-")
    kinds = ("text_completion", "text_completion")

    @router.post(PATH)
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continues a text, whole or as server-sent events."""
        return await answering.answer(
            request,
            body.request(),
            lambda generation: ChoicesWriter(
                generation, service.model_name, kinds, CompletionWriter
            ),
        )

    return router
