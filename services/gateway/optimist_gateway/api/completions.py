"""POST /v1/completions."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.api.answering import Answering
from optimist_gateway.api.requests import CompletionBody
from optimist_gateway.generation import Service
from optimist_gateway.preparation import completion_prompt

PATH = "/v1/completions"


class CompletionDialect:
    """Answers are plain text."""

    endpoint = PATH
    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def first(self) -> None:
        """Returns nothing: the first chunk is the first text."""
        return

    def chunk(self, text: str) -> dict[str, Any]:
        """Returns the new text."""
        return {"text": text}

    def whole(self, text: str) -> dict[str, Any]:
        """Returns the text."""
        return {"text": text}


def completion_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter()
    answering = Answering(service, CompletionDialect())

    @router.post(PATH)
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continues a text, whole or as server-sent events."""
        return await answering.answer(request, body, partial(completion_prompt, body))

    return router
