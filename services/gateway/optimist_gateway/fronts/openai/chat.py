"""POST /v1/chat/completions."""

import uuid
from collections.abc import Sequence
from typing import Any, Literal, NotRequired

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.fronts.openai.answer_parts import ChatLogprobs, chat_logprobs, join_logprobs
from optimist_gateway.fronts.openai.answering import Answering, admitted_route
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.chunk_writer import (
    ChoiceAnswer,
    ChoicesAnswer,
    ChoicesWriter,
    reason_name,
)
from optimist_gateway.generation.generation import Service
from optimist_gateway.structure.tool_calls import CallDelta, ContentDelta, Delta, ToolCallReader
from optimist_gateway.structure.tool_format import ToolFormat

PATH = "/v1/chat/completions"


class CalledFunctionAnswer(TypedDict):
    """A function and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallAnswer(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunctionAnswer


class MessageAnswer(TypedDict):
    """The message of the model."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallAnswer]]


def new_call_id() -> str:
    """Returns a name for a call, by which its result will refer to it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def read_deltas(reader: ToolCallReader | None, pieces: Sequence[Piece]) -> list[Delta]:
    """Returns what pieces of a choice add to its message.

    Args:
        reader: Separates tool calls from text; None if there are none.
        pieces: The next ones.
    """
    text = "".join(piece.text for piece in pieces)
    if reader is None:
        return [ContentDelta(text)] if text else []
    deltas = reader.push(text)
    if pieces[-1].finish_reason is not None:
        deltas += reader.finish()
    return deltas


class MessageDelta:
    """Text and tool calls, together; a call that begins gets its id here."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        """Joins what belongs together."""
        self._content = "".join(one.text for one in deltas if isinstance(one, ContentDelta))
        self._calls: dict[int, Any] = {}
        for delta in deltas:
            if isinstance(delta, CallDelta):
                self._add(delta)

    def to_api(self) -> dict[str, Any]:
        """Returns the delta of a chunk; empty if there is nothing to say."""
        delta: dict[str, Any] = {"content": self._content} if self._content else {}
        if self._calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in self._calls.items()]
        return delta

    def to_message(self) -> MessageAnswer:
        """Returns the message of a whole answer."""
        message: MessageAnswer = {"role": "assistant", "content": self._content, "refusal": None}
        if self._calls:
            message["content"] = self._content or None
            message["tool_calls"] = list(self._calls.values())
        return message

    def _add(self, delta: CallDelta) -> None:
        if delta.name is not None:
            self._calls[delta.index] = {
                "id": new_call_id(),
                "type": "function",
                "function": {"name": delta.name, "arguments": delta.arguments},
            }
            return
        call = self._calls.setdefault(delta.index, {"function": {"arguments": ""}})
        call["function"]["arguments"] += delta.arguments


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
        return {"delta": delta, "logprobs": chat_logprobs(piece.logprobs), "finish_reason": reason}

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


def tool_call_reader(request: GenerationRequest, form: ToolFormat) -> ToolCallReader | None:
    """Returns what reads the tool calls of one choice; None if there are none."""
    tools = request.structure.tools if request.structure is not None else None
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
        wanted = body.request()

        def new_writer() -> ChatWriter:
            return ChatWriter(tool_call_reader(wanted, service.tokenizer.tool_format))

        return await answering.answer(
            request,
            wanted,
            lambda generation: ChoicesWriter(generation, service.model_name, kinds, new_writer),
        )

    return router
