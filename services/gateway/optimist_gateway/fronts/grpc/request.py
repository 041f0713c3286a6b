"""From the message of a request to the request that all fronts share."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from optimist.v1 import inference_pb2
from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.core.content import Content, JsonContent, LarkContent, Structure
from optimist_gateway.core.error import Path
from optimist_gateway.core.messages import Message
from optimist_gateway.core.request import Conversation, Request
from optimist_gateway.fronts.openai.bodies.base import Body, Text
from optimist_gateway.fronts.openai.bodies.chat import MAX_MESSAGES
from optimist_gateway.fronts.openai.bodies.generation import (
    MAX_PREDICTIONS,
    AnswerFields,
    SamplingFields,
    TokenIds,
)
from optimist_gateway.fronts.openai.bodies.structure import ANY_OBJECT, GrammarText
from optimist_gateway.fronts.openai.bodies.tools import Json
from optimist_gateway.fronts.openai.errors import validation_error


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise PydanticCustomError(
            "invalid_json",
            "json_schema: not JSON (at character {position})",
            {"param": "json_schema", "position": error.pos},
        ) from None


class MessageBody(Body):
    """A message of a conversation; calls are for the REST API."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class ChatBody(Body):
    """A conversation."""

    messages: list[MessageBody] = Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)


class TokenIdsBody(Body):
    """Tokens."""

    ids: TokenIds = Field(default_factory=list)


class PredictionBody(Body):
    """An expected answer."""

    text: Text | None = None
    token_ids: TokenIdsBody | None = None


class GenerateBody(AnswerFields):
    """The fields of a `GenerateRequest`, by their names."""

    model: str = ""
    text: Text | None = None
    token_ids: TokenIdsBody | None = None
    chat: ChatBody | None = None
    predictions: list[PredictionBody] = Field([], fail_fast=True, max_length=MAX_PREDICTIONS)
    sampling: SamplingFields = SamplingFields()
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    num_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    json_object: bool = False
    json_schema: Annotated[Json, BeforeValidator(_parsed)] | None = None
    grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _has_a_prompt(self) -> Self:
        if self.text is None and self.token_ids is None and self.chat is None:
            raise PydanticCustomError(
                "missing_required_parameter",
                "prompt: one of text, token_ids and chat must be set",
                {"param": "prompt"},
            )
        return self

    @model_validator(mode="after")
    def _has_predictions_of_one_kind(self) -> Self:
        for index, one in enumerate(self.predictions):
            if one.text is None and one.token_ids is None:
                fault = "must be text or tokens"
            elif (one.text is None) is not (self.predictions[0].text is None):
                fault = "must be of the same kind as those before it"
            else:
                continue
            param = f"predictions[{index}]"
            raise PydanticCustomError(
                "invalid_value", "{param}: {fault}", {"param": param, "fault": fault}
            )
        return self

    def field_names(self) -> dict[Path, str]:
        """Returns what fields of the request are called here, as `Request.names` does."""
        if self.chat is not None:
            prompt = "chat.messages"
        else:
            prompt = "text" if self.text is not None else "token_ids.ids"
        names: dict[Path, str] = {("prompts",): prompt, ("prompts", 0): prompt}
        for index, prediction in enumerate(self.predictions):
            kind = "text" if prediction.token_ids is None else "token_ids.ids"
            names[("predictions", index)] = f"predictions[{index}].{kind}"
        if self.json_schema is not None:
            names[("structure",)] = "json_schema"
        else:
            names[("structure",)] = "json_object" if self.grammar is None else "grammar"
        return names

    def request(self, model_name: str) -> Request:
        """Returns the request; `model_name` is the model if it names none."""
        content = self._content()
        return self.as_request(
            model=self.model or model_name,
            prompts=(self._prompt(),),
            names=self.field_names,
            sampling=self.sampling.sampling_values(),
            n=self.n or 1,
            num_candidates=self.n or 1,
            max_tokens=self.max_tokens,
            num_logprobs=self.num_logprobs,
            predictions=[
                one.token_ids.ids if one.token_ids is not None else one.text or ""
                for one in self.predictions
            ],
            structure=None if content is None else Structure(content),
        )

    def _prompt(self) -> Conversation | str | Sequence[int]:
        if self.chat is not None:
            return Conversation([Message(one.role, one.content) for one in self.chat.messages])
        return self.token_ids.ids if self.token_ids is not None else self.text or ""

    def _content(self) -> Content | None:
        if self.json_schema is not None:
            return JsonContent(self.json_schema, is_lenient=False)
        if self.grammar is not None:
            return LarkContent(self.grammar)
        return ANY_OBJECT if self.json_object else None


def generation_request(message: inference_pb2.GenerateRequest, model_name: str) -> Request:
    """Returns what a message asks for.

    Args:
        message: The request.
        model_name: The model if it names none.

    Raises:
        ApiError: Something is wrong with it; the error names the field of the message.
    """
    fields = _fields(message)
    try:
        return GenerateBody.model_validate(fields).request(model_name)
    except ValidationError as error:
        details = [one | {"loc": ("body", *one["loc"])} for one in error.errors()]
        raise validation_error(RequestValidationError(details, body=fields)) from None


def _fields(message: Any) -> dict[str, Any]:
    """Returns the fields of a message that are set, and those of messages in it."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        return dict(value)
    return [_fields(one) for one in value] if field.is_repeated else _fields(value)
