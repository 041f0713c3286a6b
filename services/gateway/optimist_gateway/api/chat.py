"""POST /v1/chat/completions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.api.answering import Answering
from optimist_gateway.api.chat_body import ChatCompletionBody
from optimist_gateway.api.dialect import reason_name
from optimist_gateway.api.requests import GenerationBody
from optimist_gateway.core.answer import Piece
from optimist_gateway.generation import Service
from optimist_gateway.prompt import chat_prompt

PATH = "/v1/chat/completions"


class ChatWriter:
    """Writes messages; the first chunk names the role."""

    def first(self) -> dict[str, Any]:
        """See `ChoiceWriter.first`."""
        return _choice({"delta": {"role": "assistant", "content": ""}}, None)

    def chunk(self, piece: Piece, *, even_if_empty: bool) -> dict[str, Any] | None:
        """See `ChoiceWriter.chunk`."""
        reason = reason_name(piece)
        if not (piece.text or reason or even_if_empty):
            return None
        return _choice({"delta": {"content": piece.text} if piece.text else {}}, reason)

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """See `ChoiceWriter.whole`."""
        text = "".join(piece.text for piece in pieces)
        message = {"role": "assistant", "content": text, "refusal": None}
        return _choice({"message": message}, reason_name(pieces[-1]))


def _choice(content: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {**content, "logprobs": None, "finish_reason": reason}


class ChatDialect:
    """Answers are messages."""

    endpoint = PATH
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def writer(self, _body: GenerationBody) -> ChatWriter:
        """See `Dialect.writer`."""
        return ChatWriter()


def chat_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter()
    answering = Answering(service, ChatDialect())

    @router.post(PATH)
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        """Answers a conversation, whole or as server-sent events."""
        return await answering.answer(request, body, partial(chat_prompt, body))

    return router
