"""The body of POST /v1/responses, and the request that it makes."""

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, model_validator

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.api.openai.bodies.base import INT32_MAX, Body, invalid, only
from optimist_gateway.api.openai.bodies.conversation import TemplateFields
from optimist_gateway.api.openai.bodies.generation import AnswerBody, MaxTokens
from optimist_gateway.api.openai.bodies.structure import (
    MAX_TOOLS,
    JsonObjectFormat,
    JsonSchemaBody,
    TextFormat,
    ToolChoiceBody,
    format_content,
)
from optimist_gateway.api.openai.responses.items import Input, messages_of
from optimist_gateway.api.openai.responses.tools import Tool, ToolBody, tools_of
from optimist_gateway.core.error import Path, field_name
from optimist_gateway.core.request import Conversation, Message, Request

LOGPROBS = "message.output_text.logprobs"


class SchemaFormat(JsonSchemaBody):
    """JSON that follows a schema."""

    type: Literal["json_schema"]


class TextOptions(Body):
    """What form the text of the answer has."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Discriminator("type")] | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Ignored."""


class ReasoningOptions(Body):
    """How much the model thinks."""

    effort: str | None = None
    summary: str | None = None
    """Ignored: there are no summaries."""


class ResponsesBody(AnswerBody, TemplateFields):
    """A request that is answered with items; nothing of it is stored."""

    input: Input
    instructions: Input | None = None
    """In front of the input; a text is a system message."""
    max_output_tokens: MaxTokens = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[ToolBody] | None = Field(None, fail_fast=True, max_length=MAX_TOOLS)
    """Those that are neither functions nor custom are left out."""
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = Field(None, fail_fast=True, max_length=64)
    """Of what there is, only log-probabilities have to be asked for."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens `include` reports for each token."""
    max_tool_calls: int | None = Field(None, ge=-INT32_MAX, le=INT32_MAX)
    """Ignored: it counts calls of tools that run on the server."""
    truncation: Literal["auto", "disabled"] | None = None
    """Ignored: an input that is too long is an error."""
    metadata: dict[str, str] | None = None
    """Ignored but for being repeated, as all up to `prompt_cache_key`."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    background: Annotated[Any, only(False)] = None
    """Would need responses to be stored, as all that follow."""
    conversation: Annotated[Any, only()] = None
    previous_response_id: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None

    @cached_property
    def called(self) -> list[Tool]:
        """The tools that the model may call."""
        return tools_of(self.tools or ())

    def field_names(self) -> dict[Path, str]:
        """See `AnswerBody.field_names`."""
        names = super().field_names() | {("prompts",): "input", ("prompts", 0): "input"}
        schema = ".schema" if isinstance(self._form, SchemaFormat) else ""
        names.setdefault(("structure",), f"text.format{schema}")
        for index, tool in enumerate(self.called):
            names[("tools", index)] = field_name(tool.path)
        return names

    def request(self) -> Request:
        """Returns the request; raises ApiError if its fields do not fit together."""
        messages = [*_messages("system", self.instructions), *_messages("user", self.input)]
        effort = self.reasoning.effort if self.reasoning is not None else None
        functions = [tool.function for tool in self.called]
        wants_logprobs = LOGPROBS in (self.include or ())
        return self.conversation_request(
            Conversation(messages, functions, self.template_kwargs(effort)),
            self.tool_choice,
            format_content(self._form),
            "text.format",
            is_parallel=self.parallel_tool_calls is not False,
            shown=self._shown_names(),
            max_tokens=self.max_output_tokens,
            num_logprobs=(self.top_logprobs or 0) if wants_logprobs else None,
        )

    @property
    def _form(self) -> TextFormat | JsonObjectFormat | SchemaFormat | None:
        return self.text.format if self.text is not None else None

    def _shown_names(self) -> dict[str, str]:
        """Returns what the model calls tools, by the names that they have in their namespaces."""
        known = {tool.function.name for tool in self.called}
        return {
            one.body.name: one.function.name for one in self.called if one.body.name not in known
        }

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.input == [] and not self.instructions:
            raise invalid("input", "input must not be empty")
        return self


def _messages(role: str, given: Input | None) -> list[Message]:
    if isinstance(given, str):
        return [Message(role, given)]
    return messages_of(given or ())
