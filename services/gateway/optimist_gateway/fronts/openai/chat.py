"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.finish import FinishReason
from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.fronts.openai.admitted_route import admitted_route
from optimist_gateway.fronts.openai.answering import Answering
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.dialect import reason_name
from optimist_gateway.fronts.openai.logprobs import chat_logprobs, join_logprobs
from optimist_gateway.fronts.openai.message_delta import MessageDelta
from optimist_gateway.generation.generation import Service
from optimist_gateway.structure.tool_calls import ContentDelta, Delta, ToolCallReader
from optimist_gateway.structure.tool_format import ToolFormat

PATH = "/v1/chat/completions"


class ChatWriter:
    """Writes messages; the first chunk names the role."""

    def __init__(self, reader: ToolCallReader | None) -> None:
        """Starts a message.

        Args:
            reader: Tells tool calls from text; None if there are none.
        """
        self._reader = reader

    @property
    def is_stateless(self) -> bool:
        """See `ChoiceWriter.is_stateless`."""
        return self._reader is None

    def first(self) -> dict[str, Any]:
        """See `ChoiceWriter.first`."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"delta": delta, "logprobs": None, "finish_reason": None}

    def chunk(self, piece: Piece, *, even_if_empty: bool) -> dict[str, Any] | None:
        """See `ChoiceWriter.chunk`."""
        delta = self._delta(piece)
        reason = self._reason(piece)
        if not (delta or reason or even_if_empty or piece.logprobs):
            return None
        return {
            "delta": delta,
            "logprobs": chat_logprobs(piece.logprobs),
            "finish_reason": reason,
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """See `ChoiceWriter.whole`."""
        message = MessageDelta(self._read(pieces))
        return {
            "message": message.to_message(),
            "logprobs": chat_logprobs(join_logprobs(pieces)),
            "finish_reason": self._reason(pieces[-1]),
        }

    def _delta(self, piece: Piece) -> dict[str, Any]:
        if self._reader is None:
            return {"content": piece.text} if piece.text else {}
        return MessageDelta(self._read([piece])).to_api()

    def _read(self, pieces: Sequence[Piece]) -> list[Delta]:
        text = "".join(piece.text for piece in pieces)
        if self._reader is None:
            return [ContentDelta(text)] if text else []
        deltas = self._reader.push(text)
        if pieces[-1].finish_reason is not None:
            deltas += self._reader.finish()
        return deltas

    def _reason(self, piece: Piece) -> str | None:
        has_calls = self._reader is not None and self._reader.num_calls > 0
        if has_calls and piece.finish_reason is FinishReason.STOP:
            return "tool_calls"
        return reason_name(piece)


class ChatDialect:
    """Answers are messages."""

    endpoint = PATH
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, form: ToolFormat) -> None:
        """Takes how the model writes tool calls."""
        self._form = form

    def writer(self, request: GenerationRequest) -> ChatWriter:
        """See `Dialect.writer`."""
        return chat_writer(request, self._form)


def chat_writer(request: GenerationRequest, form: ToolFormat) -> ChatWriter:
    """Returns what words one choice of an answer to a request."""
    tools = request.structure.tools if request.structure is not None else None
    if tools is None:
        return ChatWriter(None)
    return ChatWriter(ToolCallReader(form, [function.name for function in tools.functions]))


def chat_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))
    answering = Answering(service, ChatDialect(service.tokenizer.tool_format))

    @router.post(PATH)
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        """Answers a conversation, whole or as server-sent events."""
        return await answering.answer(request, body.request())

    return router
