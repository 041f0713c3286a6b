"""The items of the input of POST /v1/responses."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from optimist_gateway.fronts.openai.bodies.base import MAX_PARTS, Body, Text
from optimist_gateway.fronts.openai.bodies.message import Arguments, CallId
from optimist_gateway.fronts.openai.bodies.tools import FunctionName

Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Body):
    """Text of a user, a system or a tool."""

    type: Literal["input_text"]
    text: Text


class OutputTextPart(Body):
    """Text of an earlier answer; annotations and log-probabilities are not read."""

    type: Literal["output_text"]
    text: Text
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


_Parts = Annotated[
    list[Annotated[InputTextPart | OutputTextPart, Field(discriminator="type")]],
    Field(fail_fast=True, max_length=MAX_PARTS),
]
_InputParts = Annotated[list[InputTextPart], Field(fail_fast=True, max_length=MAX_PARTS)]


class InputMessage(Body):
    """A message; that of an earlier answer has the role `assistant`."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | _Parts
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Body):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: Arguments
    id: str | None = None
    status: Status | None = None
    caller: None = None
    namespace: None = None


class FunctionCallOutputItem(Body):
    """What a call brought."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Text | _InputParts
    id: str | None = None
    status: Status | None = None
    caller: None = None
    name: str | None = None
    namespace: None = None


def _kind(item: object) -> object:
    """Returns the type of an item, which messages need not have."""
    if isinstance(item, dict):
        return item.get("type", "message")
    return getattr(item, "type", None)


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message=(
            "must be an item of type message, function_call or function_call_output"
        ),
    ),
]


def parts_text(content: str | list[InputTextPart | OutputTextPart] | list[InputTextPart]) -> str:
    """Returns the text of a content, whose parts join without anything between them."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
