"""The items of the input of POST /v1/responses, and the messages that they make."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Discriminator, Field, Tag

from optimist_gateway.api.openai.bodies.base import (
    OTHER,
    Body,
    Content,
    LeftOut,
    content_text,
    tag_of,
)
from optimist_gateway.api.openai.bodies.conversation import Arguments, MessageBody
from optimist_gateway.api.openai.responses.tools import INPUT, shown_name
from optimist_gateway.core.request import Message, ToolCall

MAX_ITEMS = 4096
# Messages need not have a type.
_TAGS: dict[str | None, str] = {
    **dict.fromkeys((None, "message"), "a message"),
    **dict.fromkeys(("function_call", "custom_tool_call"), "a call"),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), "a result"),
    "reasoning": "thoughts",
}


class MessageItem(MessageBody):
    """A message, as in a chat; that of an earlier answer has the role `assistant`."""

    type: Literal["message"] | None = "message"


class _Item(Body):
    def message(self) -> Message | None:
        """Returns the item as a message; None if it says nothing to a model."""
        raise NotImplementedError


class CallItem(_Item):
    """A call in an earlier answer, of a function or, with an input, of a custom tool."""

    type: Literal["function_call", "custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Arguments = Field(validation_alias=AliasChoices("arguments", "input"))

    def message(self) -> Message:
        """See `_Item.message`."""
        is_custom = self.type == "custom_tool_call"
        arguments = {INPUT: self.arguments} if is_custom else self.arguments
        name = shown_name(self.name, self.namespace)
        return Message("assistant", "", (ToolCall(self.call_id, name, arguments),))


def _as_content(output: Any) -> Any:
    """Returns the text or the parts of what a call brought; other values are written as JSON."""
    if isinstance(output, str):
        return output
    if isinstance(output, list) and all(isinstance(one, dict) and "type" in one for one in output):
        return output
    return "" if output is None else json.dumps(output, ensure_ascii=False)


class OutputItem(_Item):
    """What a call brought."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Annotated[Content, BeforeValidator(_as_content, json_schema_input_type=Any)]

    def message(self) -> Message:
        """See `_Item.message`."""
        return Message("tool", content_text(self.output), tool_call_id=self.call_id)


class ReasoningItem(_Item):
    """What the model thought before an earlier answer; what is encrypted is left out."""

    type: Literal["reasoning"]
    content: Content | None = None
    summary: Content | None = None
    """Shown if there is no content."""

    def message(self) -> Message | None:
        """See `_Item.message`."""
        said = self.content or self.summary
        text = content_text(said, of_thoughts=True) or content_text(said)
        return Message("assistant", "", reasoning=text) if text else None


class OtherItem(_Item, LeftOut):
    """A reference to what is not stored here, or an item of a tool that does not run here."""

    type: Annotated[str, Field(json_schema_extra={"not": {"enum": [one for one in _TAGS if one]}})]

    def message(self) -> None:
        """See `_Item.message`."""


Item = Annotated[
    Annotated[MessageItem, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[OutputItem, Tag("a result")]
    | Annotated[ReasoningItem, Tag("thoughts")]
    | Annotated[OtherItem, Tag(OTHER)],
    tag_of(_TAGS),
]
Input = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[Item], Field(fail_fast=True, max_length=MAX_ITEMS), Tag("items")],
    Discriminator(lambda value: "items" if isinstance(value, list) else "text"),
]
"""A text, or items."""


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Returns the messages of items; thoughts, text and calls of one answer are one message."""
    messages: list[Message] = []
    for item in items:
        message = item.message()
        if message is not None and messages and _is_same_answer(messages[-1], message):
            last = messages.pop()
            message = replace(
                last,
                content=last.content + message.content,
                reasoning="\n\n".join(filter(None, (last.reasoning, message.reasoning))),
                tool_calls=last.tool_calls + message.tool_calls,
            )
        if message is not None:
            messages.append(message)
    # Thoughts that led to nothing are not shown.
    return [one for one in messages if one.content or one.tool_calls or not one.reasoning]


def _is_same_answer(last: Message, message: Message) -> bool:
    """Returns whether a message goes on with the last one: calls do, and all behind thoughts."""
    has_only_thoughts = not (last.content or last.tool_calls)
    has_only_calls = not (message.content or message.reasoning)
    both = last.role == message.role == "assistant"
    return both and (has_only_thoughts or has_only_calls)
