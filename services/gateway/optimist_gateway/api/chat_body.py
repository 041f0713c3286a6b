"""The body of POST /v1/chat/completions."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.api.body import Body, Content, content_text
from optimist_gateway.api.requests import GenerationBody
from optimist_gateway.api.unsupported import OF_CHAT, KnownParameters
from optimist_gateway.core.messages import Message

MAX_MESSAGES = 4096
_INT32_MAX = 2**31 - 1


class MessageBody(Body):
    """One message; fields of other kinds of messages must be null."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = None

    def message(self) -> Message:
        """Returns the message as a plain value."""
        return Message(self.role, content_text(self.content))


class ChatCompletionBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"
    known_parameters: ClassVar[KnownParameters] = OF_CHAT

    messages: list[MessageBody] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32_MAX)
    logprobs: bool | None = None
    """Tells the log-probability of each token of the answer."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens are told of in the place of each; needs `logprobs`."""

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
    def _has_one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError(
                "invalid_value",
                "max_tokens and max_completion_tokens must not both be set",
                {"param": "max_tokens"},
            )
        return self
