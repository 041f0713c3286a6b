"""The body of POST /v1/chat/completions, with the messages of the chat."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.core.error import Path
from optimist_gateway.core.json_text import is_heavier, parse_json
from optimist_gateway.core.request import Message, Request, ToolCall
from optimist_gateway.fronts.openai.bodies.base import (
    Body,
    Content,
    content_text,
    invalid,
    only,
)
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody, MaxTokens
from optimist_gateway.fronts.openai.bodies.structure import (
    MAX_TEXT_WEIGHT,
    MAX_TOOLS,
    FunctionName,
    JsonSchemaFormat,
    ResponseFormat,
    ToolBody,
    ToolChoiceBody,
    format_content,
    tool_choice,
)
from optimist_gateway.structure.schema import MAX_VALUES, check_json

MAX_MESSAGES = 4096
MAX_TOOL_CALLS = 128
MAX_CALL_VALUES = 100_000
"""JSON values in the arguments of all calls of a conversation."""


def _arguments(text: object) -> object:
    """Returns the object that a text has, or the text if it has none: it may have been cut off."""
    if not isinstance(text, str):
        return text
    if is_heavier(text.encode(), MAX_TEXT_WEIGHT):
        raise ValueError(f"has more than {MAX_VALUES} values")
    try:
        value = parse_json(text or "{}")
        check_json(value)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def require_bounded(field: str, arguments: Iterable[dict[str, Any] | str]) -> None:
    """Raises PydanticCustomError, which names the field, for too many values of calls."""
    num_values = 0
    for one in arguments:
        num_values += check_json(one)
        if num_values > MAX_CALL_VALUES:
            fault = f"the arguments of its calls have more than {MAX_CALL_VALUES} values in all"
            raise invalid(field, f"{field}: {fault}")


Arguments = Annotated[dict[str, Any] | str, BeforeValidator(_arguments, json_schema_input_type=str)]
CallId = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class CalledFunction(Body):
    """The function of an earlier call."""

    name: FunctionName
    arguments: Arguments
    """A JSON object, as text; another text is shown as it is."""


class ToolCallBody(Body):
    """A call that the assistant made earlier."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class _MessageFields(Body):
    """What clients send with any message; fields of other kinds must be null."""

    name: str | None = None
    refusal: None = None
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = None


class PlainMessage(_MessageFields):
    """A message of the user or of who runs the application."""

    role: Literal["system", "developer", "user"]
    content: Content
    tool_calls: None = None
    tool_call_id: None = None

    def message(self) -> Message:
        """Returns the message as a plain value."""
        return Message(self.role, content_text(self.content))


class AssistantMessage(_MessageFields):
    """An answer of the model; its content may be null if it has calls."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[ToolCallBody] | None = Field(None, fail_fast=True, max_length=MAX_TOOL_CALLS)
    tool_call_id: None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is required if there are no tool_calls")
        return self

    def message(self) -> Message:
        """Returns the message as a plain value."""
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in self.tool_calls or ()
        )
        content = "" if self.content is None else content_text(self.content)
        return Message(self.role, content, tool_calls=calls)


class ToolMessage(_MessageFields):
    """What a call returned."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId
    tool_calls: None = None

    def message(self) -> Message:
        """Returns the message as a plain value."""
        return Message(
            self.role, content_text(self.content), tool_call_id=self.tool_call_id, name=self.name
        )


def _kind(value: object) -> str:
    role = value.get("role") if isinstance(value, Mapping) else getattr(value, "role", None)
    return role if role in ("assistant", "tool") else "plain"


MessageBody = Annotated[
    Annotated[PlainMessage, Tag("plain")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")],
    Discriminator(_kind),
]


class ChatCompletionBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: list[MessageBody] = Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = None
    """Reports the log-probability of each token of the answer."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens are reported at the position of each; needs `logprobs`."""

    response_format: ResponseFormat | None = None
    tools: list[ToolBody] | None = Field(None, fail_fast=True, max_length=MAX_TOOLS)
    """What the model may call; an empty list is none."""
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
        for index, name in enumerate(tool_choice(self.tool_choice)[1]):
            names[("tool_choice", index)] = name
        schema = ".json_schema.schema" if isinstance(self.response_format, JsonSchemaFormat) else ""
        names.setdefault(("structure",), f"response_format{schema}")
        return names

    def request(self) -> Request:
        """Returns the request; raises ApiError if its tools do not fit together."""
        # Both are upper bounds.
        limits = self.given(("max_tokens", "max_completion_tokens"))
        return self.conversation_request(
            [message.message() for message in self.messages],
            [tool.function.function_at(index) for index, tool in enumerate(self.tools or ())],
            tool_choice(self.tool_choice)[0],
            format_content(self.response_format),
            is_parallel=self.parallel_tool_calls is not False,
            max_tokens=min(limits.values(), default=None),
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    @model_validator(mode="after")
    def _has_bounded_calls(self) -> Self:
        messages = (one for one in self.messages if isinstance(one, AssistantMessage))
        calls = (call for message in messages for call in message.tool_calls or ())
        require_bounded("messages", (call.function.arguments for call in calls))
        return self

    @model_validator(mode="after")
    def _has_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        return self

    @model_validator(mode="after")
    def _has_one_structure(self) -> Self:
        other = "response_format" if format_content(self.response_format) is not None else None
        self.require_one_structure(other, has_calls=bool(self.tools) and self.tool_choice != "none")
        return self
