"""The bodies of POST /tokenize and /detokenize; the names are vLLM's."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from optimist_gateway.fronts.openai.bodies.base import Body, Text, TokenId, exactly_one
from optimist_gateway.fronts.openai.bodies.chat import MAX_MESSAGES
from optimist_gateway.fronts.openai.bodies.message import MessageBody

MAX_TOKENS = 1_048_576


class TokenizeBody(Body):
    """A text or a conversation."""

    model_config = ConfigDict(json_schema_extra=exactly_one(("prompt", "messages")))

    model: str | None = None
    prompt: Text | None = None
    messages: (
        Annotated[list[MessageBody], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
        | None
    ) = None
    add_special_tokens: bool | None = None
    """Whether to add the tokens that a prompt begins with; null is true for `prompt`, and false for
    `messages`, whose chat template has them."""
    add_generation_prompt: bool | None = None
    """For `messages`: whether to go up to where the answer begins; null is true."""
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError(
                "invalid_value",
                "prompt: either prompt or messages must be set, and not both",
                {"param": "prompt"},
            )
        return self


class DetokenizeBody(Body):
    """Tokens."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_TOKENS)]
