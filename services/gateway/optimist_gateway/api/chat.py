"""POST /v1/chat/completions."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.api.answering import Answering
from optimist_gateway.api.requests import ChatCompletionBody
from optimist_gateway.generation import Service
from optimist_gateway.preparation import chat_prompt

PATH = "/v1/chat/completions"


class ChatDialect:
    """Answers are messages; the first chunk names the role."""

    endpoint = PATH
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self) -> dict[str, Any]:
        """Returns the role."""
        return {"delta": {"role": "assistant", "content": ""}}

    def chunk(self, text: str) -> dict[str, Any]:
        """Returns the new text; no content if there is none."""
        return {"delta": {"content": text} if text else {}}

    def whole(self, text: str) -> dict[str, Any]:
        """Returns the message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


def chat_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter()
    answering = Answering(service, ChatDialect())

    @router.post(PATH)
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        """Answers a conversation, whole or as server-sent events."""
        return await answering.answer(request, body, partial(chat_prompt, body))

    return router
