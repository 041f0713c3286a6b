"""The body of POST /v1/chat/completions, with the messages of the chat."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from optimist_common.sampling import MAX_LOGPROBS
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
from optimist_gateway.core.error import Path
from optimist_gateway.core.request import Request


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
