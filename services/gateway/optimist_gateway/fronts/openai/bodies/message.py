"""The messages of a chat."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticKnownError

from optimist_gateway.core.messages import Message, ToolCall
from optimist_gateway.fronts.openai.bodies.base import (
    Body,
    Content,
    Text,
    content_or_calls,
    content_text,
    encodable,
)
from optimist_gateway.fronts.openai.bodies.tools import FunctionName
from optimist_gateway.structure.schema import SchemaError, check_json

MAX_TOOL_CALLS = 128


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _json_object(text: object) -> dict[str, Any]:
    """Returns the object that a text has; no text is an empty one."""
    if not isinstance(text, str):
        raise PydanticKnownError("string_type")
    try:
        value = json.loads(encodable(text) or "{}", parse_constant=_refuse)
        if not isinstance(value, dict):
            raise ValueError("must be a JSON object")
        check_json(value)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("must be the text of a JSON object") from None
    except SchemaError as error:
        raise ValueError(error.message) from None
    return value


Arguments = Annotated[
    dict[str, Any],
    BeforeValidator(_json_object),
    WithJsonSchema({"type": "string", "format": "json-object"}),
]
CallId = Annotated[Text, StringConstraints(min_length=1, max_length=256)]


class CalledFunction(Body):
    """The function of an earlier call."""

    name: FunctionName
    arguments: Arguments
    """A JSON object, as text."""


class ToolCallBody(Body):
    """A call that the assistant made earlier."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction

    def tool_call(self) -> ToolCall:
        """Returns the call as a plain value."""
        return ToolCall(self.id, self.function.name, self.function.arguments)


class _MessageFields(Body):
    """What clients send with any message; fields of other kinds must be null."""

    name: Text | None = None
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

    model_config = ConfigDict(json_schema_extra=content_or_calls)

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
        calls = tuple(call.tool_call() for call in self.tool_calls or ())
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
