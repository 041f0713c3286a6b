"""The body of POST /v1/chat/completions."""

from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.core.content import Structure
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.bodies.message import MessageBody
from optimist_gateway.fronts.openai.bodies.structure import ResponseFormat, format_content
from optimist_gateway.fronts.openai.bodies.tools import (
    MAX_TOOLS,
    ToolBody,
    ToolChoice,
    check_tools,
    tool_use,
)
from optimist_gateway.fronts.openai.bodies.unsupported import OF_CHAT, KnownParameters

MAX_MESSAGES = 4096
_INT32_MAX = 2**31 - 1


class ChatCompletionBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"
    known_parameters: ClassVar[KnownParameters] = OF_CHAT

    messages: list[MessageBody] = Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32_MAX)
    logprobs: bool | None = None
    """Tells the log-probability of each token of the answer."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens are told of in the place of each; needs `logprobs`."""

    response_format: ResponseFormat | None = None
    tools: list[ToolBody] | None = Field(None, fail_fast=True, max_length=MAX_TOOLS)
    """What the model may call; an empty list is none."""
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """Whether there may be several calls in an answer; null is true."""

    def structure(self) -> Structure | None:
        """See `GenerationBody.structure`."""
        structure = super().structure()
        if structure is None:
            structure = Structure(*format_content(self.response_format))
        is_parallel = self.parallel_tool_calls is not False
        tools = tool_use(self.tools or [], self.tool_choice, is_parallel=is_parallel)
        if structure.content is None and tools is None:
            return None
        return replace(structure, tools=tools)

    def told_tools(self) -> list[dict[str, Any]]:
        """Returns the tools that the model is told of, as chat templates want them."""
        if self.tool_choice == "none":
            return []
        return [tool.for_template() for tool in self.tools or []]

    def num_logprobs(self) -> int | None:
        """See `GenerationBody.num_logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def asked_max_tokens(self) -> int | None:
        """See `GenerationBody.asked_max_tokens`."""
        asked = self.max_completion_tokens
        return self.max_tokens if asked is None else asked

    @model_validator(mode="after")
    def _has_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError(
                "invalid_value",
                "top_logprobs is only allowed when logprobs is true",
                {"param": "top_logprobs"},
            )
        return self

    @model_validator(mode="after")
    def _has_one_structure(self) -> Self:
        check_tools(self.tools or [], self.tool_choice)
        if self.structured_outputs is None:
            return self
        if format_content(self.response_format)[0] is not None:
            raise PydanticCustomError(
                "invalid_value",
                "structured_outputs and response_format must not both be set",
                {"param": "structured_outputs"},
            )
        if (
            self.structured_outputs.grammar is not None
            and self.tools
            and self.tool_choice != "none"
        ):
            raise PydanticCustomError(
                "invalid_value",
                "structured_outputs.grammar is only allowed without tools",
                {"param": "structured_outputs.grammar"},
            )
        return self

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError(
                "invalid_value",
                "max_tokens and max_completion_tokens must not both be set",
                {"param": "max_tokens"},
            )
        return self
