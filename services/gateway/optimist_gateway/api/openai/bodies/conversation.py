"""The messages of a chat in the body of a request, and further values for its template."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticKnownError

from optimist_gateway.api.openai.bodies.base import Body, Content, content_text, invalid
from optimist_gateway.api.openai.bodies.structure import MAX_TOOLS, ChatTool, Json, Schema, ToolBody
from optimist_gateway.core.request import Conversation, Message, ToolCall

MAX_MESSAGES = 4096
MAX_TOOL_CALLS = 4096

_Nothing = Annotated[list[Any], Field(max_length=0)]
Arguments = Annotated[
    Schema | str,
    BeforeValidator(
        lambda value: "" if value in (None, []) else value,
        json_schema_input_type=dict[str, Any] | str | _Nothing | None,
    ),
]
"""A JSON object, mostly as text; what is none, as it was cut off, is shown as it is."""


class CalledFunction(Body):
    """The function of an earlier call, or a custom tool, whose input is any text."""

    name: str
    arguments: Arguments = Field("", validation_alias=AliasChoices("arguments", "input"))


class ToolCallBody(Body):
    """A call that the assistant made earlier."""

    id: str | None = None
    function: CalledFunction = Field(validation_alias=AliasChoices("function", "custom"))


class MessageBody(Body):
    """A message, as clients replay what this or another server answered."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = Field(None, validate_default=True)
    """May be null in answers and in results."""
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = Field(None, fail_fast=True, max_length=MAX_TOOL_CALLS)
    """Calls of an answer."""
    function_call: CalledFunction | None = None
    """The same before there were several."""
    tool_call_id: str | None = None
    """Of a result: its call; null for the next one that has none."""
    refusal: str | None = None
    """What an answer says if it has no content."""
    reasoning_content: Any = None
    """What was thought before an answer, as text; else it is ignored."""
    reasoning: Any = None
    """Another name of the same."""
    prefix: bool | None = None
    """Of the last message: whether the answer continues it."""
    partial: bool | None = None
    """Another name of the same."""

    @field_validator("content")
    @classmethod
    def _is_there(cls, content: Content | None, info: ValidationInfo) -> Content | None:
        if content is None and info.data.get("role") in ("system", "developer", "user"):
            raise PydanticKnownError("missing")
        return content

    @field_validator("tool_calls", "function_call")
    @classmethod
    def _is_of_an_answer(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("role") not in (None, "assistant"):
            raise ValueError("only messages of the assistant have calls")
        return value

    @property
    def is_plain_answer(self) -> bool:
        """Whether it is the assistant's, without calls."""
        return self.role == "assistant" and not self.tool_calls and self.function_call is None

    def message(self) -> Message:
        """Returns the message as a plain value."""
        text = content_text(self.content)
        if self.role != "assistant":
            role = "tool" if self.role == "function" else self.role
            return Message(role, text, tool_call_id=self.tool_call_id or None, name=self.name)
        calls = [(call.id, call.function) for call in self.tool_calls or ()]
        if self.function_call is not None:
            calls.append((None, self.function_call))
        thoughts = (self.reasoning_content, self.reasoning)
        return Message(
            self.role,
            text or self.refusal or "",
            tuple(ToolCall(name or "", called.name, called.arguments) for name, called in calls),
            name=self.name,
            reasoning=next((one for one in thoughts if one and isinstance(one, str)), "")
            or content_text(self.content, of_thoughts=True),
        )


Messages = Annotated[
    list[MessageBody], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
]
_RESERVED = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversations"}
    | {"messages", "return_assistant_tokens_mask", "tools"}
)


def _leaves_the_prompt(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if name in _RESERVED or name.endswith("_token"):
            raise ValueError(f"{name:.40} must not be among them")
    return values


def thinking_kwargs(effort: str | None, is_on: bool | None = None) -> dict[str, Any]:
    """Returns values for templates that say how much to think, by the names that they have.

    An effort of `none` is the same as False; without either they think as they do.
    """
    if is_on is None and effort:
        is_on = effort != "none"
    switches = {} if is_on is None else {"enable_thinking": is_on, "thinking": is_on}
    return switches | ({"reasoning_effort": effort} if effort and is_on else {})


class TemplateFields(Body):
    """What a chat template gets beside the messages and the tools."""

    chat_template_kwargs: Annotated[Json, AfterValidator(_leaves_the_prompt)] | None = None
    """Extension: values for the chat template by name, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """Given to chat templates; `none` tells them not to think."""
    enable_thinking: bool | None = None
    """Extension: the same as in `chat_template_kwargs`."""
    thinking: dict[str, Any] | None = None
    """Extension: the same, by the `type` `enabled` or `disabled`."""

    def template_kwargs(self, effort: str | None = None) -> dict[str, Any]:
        """Returns values for the template by name; `effort` goes before `reasoning_effort`."""
        is_on = self.enable_thinking
        if is_on is None:
            kind = str((self.thinking or {}).get("type"))
            is_on = {"enabled": True, "disabled": False}.get(kind)
        return thinking_kwargs(effort or self.reasoning_effort, is_on) | (
            self.chat_template_kwargs or {}
        )


class ConversationFields(TemplateFields):
    """Fields beside the messages that the prompt of a chat depends on."""

    tools: list[ToolBody] | None = Field(None, fail_fast=True, max_length=MAX_TOOLS)
    """What the model may call; an empty list is none. Those that are no functions are left out."""
    add_generation_prompt: bool | None = None
    """Extension: whether the prompt goes up to where an answer begins; null is true."""
    continue_final_message: bool | None = None
    """Extension: whether the answer continues the last message, which is the assistant's."""

    def continues(self, last: MessageBody) -> bool:
        """Returns whether the answer continues the last message.

        Raises PydanticCustomError if that is asked for and cannot be.
        """
        if not self.continue_final_message:
            return last.is_plain_answer and bool(last.prefix or last.partial)
        fault = ""
        if self.add_generation_prompt:
            fault = "must not be true together with add_generation_prompt"
        elif not last.is_plain_answer:
            fault = "the last message must be the assistant's, without calls"
        if fault:
            raise invalid("continue_final_message", f"continue_final_message: {fault}")
        return True

    def conversation(self, messages: Sequence[MessageBody]) -> Conversation:
        """Returns messages, of which the last one is known to be good, with these fields."""
        is_continued = self.continues(messages[-1])
        return Conversation(
            [message.message() for message in messages],
            [
                tool.function.function_at(index)
                for index, tool in enumerate(self.tools or ())
                if isinstance(tool, ChatTool)
            ],
            self.template_kwargs(),
            add_generation_prompt=not is_continued and self.add_generation_prompt is not False,
            continue_final_message=is_continued,
        )
