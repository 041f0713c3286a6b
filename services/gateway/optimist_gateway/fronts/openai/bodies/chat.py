"""The body of POST /v1/chat/completions."""

from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.core.content import Structure
from optimist_gateway.core.error import Path, naming
from optimist_gateway.core.request import Conversation, Request
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.bodies.message import MessageBody
from optimist_gateway.fronts.openai.bodies.structure import (
    JsonSchemaFormat,
    ResponseFormat,
    format_content,
    require_no_grammar_with_tools,
)
from optimist_gateway.fronts.openai.bodies.tools import (
    MAX_TOOLS,
    ToolBody,
    ToolChoiceBody,
    tool_choice,
    tool_use,
)
from optimist_gateway.fronts.openai.bodies.unsupported import OF_CHAT, KnownParameters

MAX_MESSAGES = 4096
_INT32_MAX = 2**31 - 1


class ChatCompletionBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    known_parameters: ClassVar[KnownParameters] = OF_CHAT

    messages: list[MessageBody] = Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32_MAX)
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

    def field_names(self) -> dict[Path, str]:
        """See `AnswerBody.field_names`."""
        names = super().field_names() | {("prompts",): "messages", ("prompts", 0): "messages"}
        for index in range(len(self.tools or ())):
            names[("tools", index)] = f"tools[{index}].function"
        for index, name in enumerate(tool_choice(self.tool_choice)[1]):
            names[("tool_choice", index)] = name
        if self.structured_outputs is not None:
            names[("structure",)] = self.structured_outputs.field
        elif isinstance(self.response_format, JsonSchemaFormat):
            names[("structure",)] = "response_format.json_schema.schema"
        else:
            names[("structure",)] = "response_format"
        return names

    def request(self) -> Request:
        """Returns the request; raises ApiError if its tools do not fit together."""
        functions = [
            tool.function.function_at(index) for index, tool in enumerate(self.tools or ())
        ]
        choice, _ = tool_choice(self.tool_choice)
        with naming(self.field_names):
            is_parallel = self.parallel_tool_calls is not False
            tools = tool_use(functions, choice, is_parallel=is_parallel)
        outputs, asked = self.structured_outputs, self.max_completion_tokens
        content = format_content(self.response_format) if outputs is None else outputs.content()
        conversation = Conversation(
            [message.message() for message in self.messages],
            functions if self.tool_choice != "none" else (),
        )
        return self.as_request(
            prompts=(conversation,),
            num_candidates=self.n or 1,
            max_tokens=self.max_tokens if asked is None else asked,
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structure=Structure(content, tools) if content or tools else None,
        )

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
        if self.structured_outputs is None:
            return self
        if format_content(self.response_format) is not None:
            raise PydanticCustomError(
                "invalid_value",
                "structured_outputs and response_format must not both be set",
                {"param": "structured_outputs"},
            )
        require_no_grammar_with_tools(self.structured_outputs, self.tools, self.tool_choice)
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
