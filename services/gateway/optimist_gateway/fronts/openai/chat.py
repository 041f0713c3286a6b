"""POST /v1/chat/completions."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.finish import FinishReason
from optimist_gateway.fronts.openai.admitted_route import admitted_route
from optimist_gateway.fronts.openai.answering import Answering
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.chunk_writer import (
    ChoiceAnswer,
    ChoicesAnswer,
    ChoicesWriter,
    reason_name,
)
from optimist_gateway.fronts.openai.logprobs import ChatLogprobs, chat_logprobs, join_logprobs
from optimist_gateway.fronts.openai.message_delta import MessageAnswer, MessageDelta, read_deltas
from optimist_gateway.generation.generation import Service
from optimist_gateway.structure.tool_calls import ToolCallReader
from optimist_gateway.structure.tool_format import ToolFormat
from optimist_gateway.text.prompt import chat_prompt

PATH = "/v1/chat/completions"


class ChatChoice(ChoiceAnswer):
    """One answer to a chat."""

    message: MessageAnswer
    logprobs: ChatLogprobs | None


class ChatCompletion(ChoicesAnswer):
    """A whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatWriter:
    """Writes messages; the first chunk names the role."""

    def __init__(self, reader: ToolCallReader | None) -> None:
        """Starts a message.

        Args:
            reader: Separates tool calls from text; None if there are none.
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
        message = MessageDelta(read_deltas(self._reader, pieces))
        return {
            "message": message.to_message(),
            "logprobs": chat_logprobs(join_logprobs(pieces)),
            "finish_reason": self._reason(pieces[-1]),
        }

    def _delta(self, piece: Piece) -> dict[str, Any]:
        if self._reader is None:
            return {"content": piece.text} if piece.text else {}
        return MessageDelta(read_deltas(self._reader, [piece])).to_api()

    def _reason(self, piece: Piece) -> str | None:
        has_calls = self._reader is not None and self._reader.num_calls > 0
        if has_calls and piece.finish_reason is FinishReason.STOP:
            return "tool_calls"
        return reason_name(piece)


def tool_call_reader(body: GenerationBody, form: ToolFormat) -> ToolCallReader | None:
    """Returns what reads the tool calls of one choice; None if there are none."""
    structure = body.structure()
    tools = structure.tools if structure is not None else None
    if tools is None:
        return None
    return ToolCallReader(form, [function.name for function in tools.functions])


def chat_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))
    answering = Answering(service, PATH, "chatcmpl-")
    kinds = ("chat.completion", "chat.completion.chunk")

    @router.post(PATH)
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        """Answers a conversation, whole or as server-sent events."""

        def new_writer() -> ChatWriter:
            return ChatWriter(tool_call_reader(body, service.tokenizer.tool_format))

        return await answering.answer(
            request,
            body,
            partial(chat_prompt, body),
            lambda generation: ChoicesWriter(generation, service.model_name, kinds, new_writer),
        )

    return router
