"""POST /v1/chat/completions: the body of a request, and its answers."""

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Self

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field, model_validator
from starlette.responses import Response

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.api.openai.answer_parts import chat_logprobs
from optimist_gateway.api.openai.answering import STREAMED, Answering
from optimist_gateway.api.openai.bodies.base import invalid, only
from optimist_gateway.api.openai.bodies.conversation import ConversationFields, Messages
from optimist_gateway.api.openai.bodies.generation import GenerationBody, MaxTokens
from optimist_gateway.api.openai.bodies.structure import (
    JsonSchemaFormat,
    ResponseFormat,
    ToolChoiceBody,
    format_content,
)
from optimist_gateway.api.openai.body_route import body_route
from optimist_gateway.api.openai.chunk_writer import ChoicesWriter, ChoiceWriter
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
            self.tool_choice,
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


def _message(deltas: Sequence[AnyDelta], *, is_whole: bool) -> dict[str, Any]:
    """Joins thoughts, text and calls to a message, or to the delta of a chunk, maybe an empty one.

    A call that begins gets its id here.
    """
    reasoning = content = ""
    calls: dict[int, Any] = {}
    for delta in deltas:
        if isinstance(delta, ReasoningDelta):
            reasoning += delta.text
        elif isinstance(delta, ContentDelta):
            content += delta.text
        elif delta.name is not None:
            function = {"name": delta.name, "arguments": delta.arguments}
            calls[delta.index] = {"id": new_call_id(), "type": "function", "function": function}
        else:
            call = calls.setdefault(delta.index, {"function": {"arguments": ""}})
            call["function"]["arguments"] += delta.arguments
    said: dict[str, Any] = {"reasoning_content": reasoning} if reasoning else {}
    if is_whole:
        shown = (content or None) if calls else content
        said = {"role": "assistant", "content": shown, "refusal": None, **said}
        return said | ({"tool_calls": list(calls.values())} if calls else {})
    said |= {"content": content} if content else {}
    if calls:
        said["tool_calls"] = [{"index": index, **call} for index, call in calls.items()]
    return said


class ChatWriter(ChoiceWriter):
    """Writes messages; the first chunk names the role."""

    content = "delta"

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader

    @property
    def is_stateless(self) -> bool:  # type: ignore[override]
        """See `ChoiceWriter.is_stateless`."""
        return self._reader.is_plain

    def first(self) -> dict[str, Any]:
        """See `ChoiceWriter.first`."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        """See `ChoiceWriter.choice`."""
        reason = piece.finish_reason
        deltas = self._reader.push(piece.text, is_last=reason is not None)
        ended = reason.api_name if reason is not None else None
        if self._reader.num_calls and reason is FinishReason.STOP:
            ended = "tool_calls"
        return {
            "message" if is_whole else "delta": _message(deltas, is_whole=is_whole),
            "logprobs": chat_logprobs(piece.logprobs),
            "finish_reason": ended,
        }


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
