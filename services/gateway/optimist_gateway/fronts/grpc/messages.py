"""From the message of a request to the request of all fronts, and from pieces to messages."""

from collections.abc import Sequence
from typing import Any, Self

from google.protobuf.message import DecodeError
from pydantic import Field, ValidationError, model_validator

from optimist.v1 import inference_pb2
from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.output import FinishReason, Speculation, TokenLogprob, Usage
from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.error import ApiError, Path
from optimist_gateway.core.json_text import MAX_WEIGHT
from optimist_gateway.core.request import (
    Content,
    Conversation,
    JsonContent,
    LarkContent,
    Request,
    Structure,
)
from optimist_gateway.core.wire_weight import is_heavier_message
from optimist_gateway.fronts.openai.answer_parts import speculation_answer
from optimist_gateway.fronts.openai.bodies.base import Body, invalid
from optimist_gateway.fronts.openai.bodies.conversation import Messages
from optimist_gateway.fronts.openai.bodies.generation import (
    MAX_PREDICTIONS,
    AnswerFields,
    SamplingFields,
    TokenIds,
)
from optimist_gateway.fronts.openai.bodies.structure import (
    ANY_OBJECT,
    GrammarText,
    Json,
)
from optimist_gateway.fronts.openai.body_route import too_many_values
from optimist_gateway.fronts.openai.errors import validation_error


class ChatBody(Body):
    """A conversation."""

    messages: Messages


class TokenIdsBody(Body):
    """Tokens."""

    ids: TokenIds = Field(default_factory=list)


class PredictionBody(Body):
    """An expected answer."""

    text: str | None = None
    token_ids: TokenIdsBody | None = None


class GenerateBody(AnswerFields):
    """The fields of a `GenerateRequest`, by their names."""

    model: str = ""
    text: str | None = None
    token_ids: TokenIdsBody | None = None
    chat: ChatBody | None = None
    predictions: list[PredictionBody] = Field([], fail_fast=True, max_length=MAX_PREDICTIONS)
    sampling: SamplingFields = SamplingFields()
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    num_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    json_object: bool = False
    json_schema: Json | None = None
    grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _has_a_prompt(self) -> Self:
        if self.text is None and self.token_ids is None and self.chat is None:
            fault = "prompt: one of text, token_ids and chat must be set"
            raise invalid("prompt", fault, "missing_required_parameter")
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
            raise invalid(param, f"{param}: {fault}")
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
            return Conversation([message.message() for message in self.chat.messages])
        return self.token_ids.ids if self.token_ids is not None else self.text or ""

    def _content(self) -> Content | None:
        if self.json_schema is not None:
            return JsonContent(self.json_schema, is_lenient=False)
        if self.grammar is not None:
            return LarkContent(self.grammar)
        return ANY_OBJECT if self.json_object else None


def read_request(data: bytes) -> inference_pb2.GenerateRequest:
    """Returns the message of a request; raises ApiError if it is none, or holds too much."""
    try:
        if is_heavier_message(data, inference_pb2.GenerateRequest.DESCRIPTOR, MAX_WEIGHT):
            raise too_many_values("request")
        return inference_pb2.GenerateRequest.FromString(data)
    except (ValueError, DecodeError):
        reason = "the request is no optimist.v1.GenerateRequest"
        raise ApiError(400, reason, code="invalid_value") from None


def generation_request(message: inference_pb2.GenerateRequest, model_name: str) -> Request:
    """Returns what a message asks for, of the model of a name if it names none.

    Raises:
        ApiError: Something is wrong with it; the error names the field of the message.
    """
    fields = _fields(message)
    try:
        return GenerateBody.model_validate(fields).request(model_name)
    except ValidationError as error:
        raise validation_error(error, fields) from None


def _fields(message: Any) -> dict[str, Any]:
    """Returns the fields of a message that are set, and those of messages in it."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        return dict(value)
    return [_fields(one) for one in value] if field.is_repeated else _fields(value)


_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.STOP_STRING: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


def step_response(index: int, piece: Piece) -> inference_pb2.GenerateResponse:
    """Returns the event that a piece of a choice is; its finish reason is no failure."""
    step = inference_pb2.Step(
        index=index,
        text=piece.text,
        token_ids=piece.token_ids,
        num_accepted_tokens=piece.num_drafts,
        source=int(piece.draft_source),  # type: ignore[arg-type]
    )
    if piece.finish_reason is not None:
        step.finish_reason = _REASONS[piece.finish_reason]
    if piece.segments:
        step.segments.extend([_segment(segment) for segment in piece.segments])
    if piece.logprobs:
        step.logprobs.extend(_logprobs(piece.logprobs))
    return inference_pb2.GenerateResponse(step=step)


def usage_message(usage: Usage) -> inference_pb2.Usage:
    """Returns the account of a request."""
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        accepted_prediction_tokens=usage.accepted_prediction_tokens,
        rejected_prediction_tokens=usage.rejected_prediction_tokens,
        num_passes=usage.num_passes,
        tokens_by_source={
            source.label: count for source, count in usage.num_tokens_by_source.items()
        },
        cached_prompt_tokens=usage.cached_prompt_tokens,
    )


def speculation_message(speculation: Speculation) -> inference_pb2.Speculation:
    """Returns what speculation was worth."""
    return inference_pb2.Speculation(**speculation_answer(speculation))


def _segment(segment: Segment) -> inference_pb2.Segment:
    message = inference_pb2.Segment(
        text=segment.text,
        num_tokens=segment.num_tokens,
        source=int(segment.source or 0),  # type: ignore[arg-type]
        run=segment.run,
    )
    span = segment.span
    if span is not None and span.is_in_prompt:
        message.prompt.start, message.prompt.end = span.start, span.end
        message.prompt.is_in_tokens = span.is_in_tokens
        if span.index is not None:
            message.prompt.message = span.index
    elif span is not None:
        message.prediction.index = span.index or 0
        message.prediction.start, message.prediction.end = span.start, span.end
    return message


def _logprobs(tokens: Sequence[TokenLogprob]) -> list[inference_pb2.TokenLogprob]:
    return [
        inference_pb2.TokenLogprob(
            token_id=token.token_id,
            text=token.text,
            token_bytes=token.token_bytes,
            logprob=token.logprob or 0.0,
            top=_logprobs(token.top),
        )
        for token in tokens
    ]
