"""POST /v1/chat/completions: the body of a request, and its answers."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field, model_validator
from starlette.responses import Response

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.api.openai.answer_parts import chat_logprobs, join_logprobs
from optimist_gateway.api.openai.answering import STREAMED, Answering
from optimist_gateway.api.openai.bodies.base import invalid, only
from optimist_gateway.api.openai.bodies.conversation import ConversationFields, Messages
from optimist_gateway.api.openai.bodies.generation import GenerationBody, MaxTokens
from optimist_gateway.api.openai.bodies.structure import (
    JsonSchemaFormat,
    ResponseFormat,
    ToolChoiceBody,
    format_content,
    tool_choice,
)
from optimist_gateway.api.openai.body_route import body_route
from optimist_gateway.api.openai.chunk_writer import ChoicesWriter, reason_name
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.core.error import Path
from optimist_gateway.core.request import Request
from optimist_gateway.generation.generation import Generation, Service
from optimist_gateway.structure.tool_calls import (
    AnyDelta,
    ContentDelta,
    MessageReader,
    ReasoningDelta,
)

PATH = "/v1/chat/completions"


class ChatCompletionBody(GenerationBody, ConversationFields):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = None
    """Reports the log-probability of each token of the answer."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens are reported at the position of each; needs `logprobs`."""

    response_format: ResponseFormat | None = None
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    """Whether there may be several calls in an answer; null is true."""
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None

    def field_names(self) -> dict[Path, str]:
        """See `AnswerBody.field_names`."""
        names = super().field_names() | {("prompts",): "messages", ("prompts", 0): "messages"}
        for index in range(len(self.tools or ())):
            names[("tools", index)] = f"tools[{index}].function"
        schema = ".json_schema.schema" if isinstance(self.response_format, JsonSchemaFormat) else ""
        names.setdefault(("structure",), f"response_format{schema}")
        return names

    def request(self) -> Request:
        """Returns the request; raises ApiError if its tools do not fit together."""
        # Both are upper bounds.
        limits = self.given(("max_tokens", "max_completion_tokens"))
        return self.conversation_request(
            self.conversation(self.messages),
            tool_choice(self.tool_choice),
            format_content(self.response_format),
            "response_format",
            is_parallel=self.parallel_tool_calls is not False,
            max_tokens=min(limits.values(), default=None),
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    @model_validator(mode="after")
    def _can_be_continued(self) -> Self:
        self.continues(self.messages[-1])
        return self

    @model_validator(mode="after")
    def _has_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        return self


def new_call_id() -> str:
    """Returns a name for a call, by which its result will refer to it."""
    return f"call_{uuid.uuid4().hex[:24]}"


class MessageDelta:
    """Thoughts, text and tool calls, together; a call that begins gets its id here."""

    def __init__(self, deltas: Sequence[AnyDelta]) -> None:
        """Joins what belongs together."""
        self._reasoning = self._content = ""
        self._calls: dict[int, Any] = {}
        for delta in deltas:
            if isinstance(delta, ReasoningDelta):
                self._reasoning += delta.text
            elif isinstance(delta, ContentDelta):
                self._content += delta.text
            elif delta.name is not None:
                function = {"name": delta.name, "arguments": delta.arguments}
                call = {"id": new_call_id(), "type": "function", "function": function}
                self._calls[delta.index] = call
            else:
                call = self._calls.setdefault(delta.index, {"function": {"arguments": ""}})
                call["function"]["arguments"] += delta.arguments

    def to_api(self) -> dict[str, Any]:
        """Returns the delta of a chunk; empty if there is nothing to say."""
        texts = {"reasoning_content": self._reasoning, "content": self._content}
        delta: dict[str, Any] = {name: text for name, text in texts.items() if text}
        if self._calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in self._calls.items()]
        return delta

    def to_message(self) -> dict[str, Any]:
        """Returns the message of a whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message["content"] = self._content or None
            message["tool_calls"] = list(self._calls.values())
        return message


@dataclass(frozen=True)
class ChatWriter:
    """Writes messages; the first chunk names the role."""

    reader: MessageReader
    content = "delta"

    @property
    def is_stateless(self) -> bool:
        """See `ChoiceWriter.is_stateless`."""
        return self.reader.is_plain

    def first(self) -> dict[str, Any]:
        """See `ChoiceWriter.first`."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"delta": delta, "logprobs": None, "finish_reason": None}

    def chunk(self, piece: Piece, *, even_if_empty: bool) -> dict[str, Any] | None:
        """See `ChoiceWriter.chunk`."""
        delta = MessageDelta(self._read(piece.text, piece)).to_api()
        reason = self._reason(piece)
        if not (delta or reason or even_if_empty or piece.logprobs):
            return None
        return {"delta": delta, "logprobs": chat_logprobs(piece.logprobs), "finish_reason": reason}

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """See `ChoiceWriter.whole`."""
        text = "".join(piece.text for piece in pieces)
        message = MessageDelta(self._read(text, pieces[-1])).to_message()
        logprobs, reason = chat_logprobs(join_logprobs(pieces)), self._reason(pieces[-1])
        return {"message": message, "logprobs": logprobs, "finish_reason": reason}

    def _read(self, text: str, piece: Piece) -> list[AnyDelta]:
        return self.reader.push(text, is_last=piece.finish_reason is not None)

    def _reason(self, piece: Piece) -> str | None:
        if self.reader.num_calls and piece.finish_reason is FinishReason.STOP:
            return "tool_calls"
        return reason_name(piece)


def chat_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=body_route(service))
    answering = Answering(service, PATH, "chatcmpl-")
    kinds = ("chat.completion", "chat.completion.chunk")

    def write(generation: Generation) -> ChoicesWriter:
        return ChoicesWriter(generation, kinds, lambda: ChatWriter(generation.message_reader()))

    @router.post(PATH, responses=STREAMED)
    async def chat_completions(request: HttpRequest, body: ChatCompletionBody) -> Response:
        """Answers a conversation, whole or as server-sent events."""
        return await answering.answer(request, body.request(), write)

    return router
