"""From the message of a request to the request of all APIs, and from pieces to messages."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError
from pydantic import Field, ValidationError

from optimist.v1 import inference_pb2
from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.api.openai.answer_parts import speculation_answer
from optimist_gateway.api.openai.bodies.base import Body
from optimist_gateway.api.openai.bodies.conversation import Messages
from optimist_gateway.api.openai.bodies.generation import AnswerFields, SamplingFields
from optimist_gateway.api.openai.bodies.structure import ANY_OBJECT, GrammarText, Json
from optimist_gateway.api.openai.body_route import too_many_values
from optimist_gateway.api.openai.errors import validation_error
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.output import FinishReason, TokenLogprob, Usage
from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.error import ApiError, Path
from optimist_gateway.core.json_text import HEAVY, MAX_WEIGHT
from optimist_gateway.core.request import (
    MAX_PREDICTIONS,
    Content,
    Conversation,
    JsonContent,
    LarkContent,
    Request,
    Structure,
)


class ChatBody(Body):
    """A conversation."""

    messages: Messages


class GenerateBody(AnswerFields):
    """The fields of a `GenerateRequest` that have limits, by their names."""

    chat: ChatBody | None = None
    predictions: list[Any] = Field([], max_length=MAX_PREDICTIONS)
    sampling: SamplingFields = SamplingFields()
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    num_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    json_schema: Json | None = None
    grammar: GrammarText | None = None


def read_request(data: bytes) -> inference_pb2.GenerateRequest:
    """Returns the message of a request; raises ApiError if it is none, or holds too much."""
    try:
        message = inference_pb2.GenerateRequest.FromString(data)
    except DecodeError:
        reason = "the request is no optimist.v1.GenerateRequest"
        raise ApiError(400, reason, code="invalid_value") from None
    if _weight(message) > MAX_WEIGHT:
        raise too_many_values("request")
    return message


def _weight(message: Any) -> int:
    """Returns what the lists of a message weigh, by which bodies of the REST API are bounded too.

    It stops where that is too much: each element becomes an object later.
    """
    weight = 0
    for field, value in message.ListFields():
        if not field.is_repeated:
            weight += 0 if field.message_type is None else _weight(value)
            continue
        is_number = field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE)
        weight += len(value) * (1 if is_number else HEAVY)
        if weight > MAX_WEIGHT:
            break
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            weight += sum(map(_weight, value))
    return weight


def generation_request(message: inference_pb2.GenerateRequest, model_name: str) -> Request:
    """Returns what a message asks for, of the model of a name if it names none.

    Raises ApiError, which names the field of the message, if something is wrong with it.
    """
    fields = _fields(message)
    try:
        body = GenerateBody.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error, fields) from None
    if message.WhichOneof("prompt") is None:
        fault = "prompt: one of text, token_ids and chat must be set"
        raise ApiError(400, fault, param="prompt", code="missing_required_parameter")
    content = _content(message, body)
    return body.as_request(
        model=message.model or model_name,
        prompts=(_prompt(message, body),),
        names=partial(_names, message),
        **body.sampling.sampling_values(),
        n=body.n or 1,
        max_tokens=body.max_tokens,
        num_logprobs=body.num_logprobs,
        predictions=_predictions(message),
        structure=None if content is None else Structure(content),
    )


_FIELDS = {"text": "text", "token_ids": "token_ids.ids", "chat": "chat.messages"}
"""Where a prompt or a prediction of a kind is."""


def _names(message: inference_pb2.GenerateRequest) -> dict[Path, str]:
    """Returns what fields of the request are called here, as `Request.names` does."""
    prompt = _FIELDS[message.WhichOneof("prompt") or ""]
    names: dict[Path, str] = {("prompts",): prompt, ("prompts", 0): prompt}
    for index, prediction in enumerate(message.predictions):
        field = _FIELDS[prediction.WhichOneof("expected") or ""]
        names["predictions", index] = f"predictions[{index}].{field}"
    return names | {("structure",): message.WhichOneof("structure") or ""}


def _prompt(
    message: inference_pb2.GenerateRequest, body: GenerateBody
) -> Conversation | str | Sequence[int]:
    if body.chat is not None:
        return Conversation([message.message() for message in body.chat.messages])
    return list(message.token_ids.ids) if message.HasField("token_ids") else message.text


def _predictions(message: inference_pb2.GenerateRequest) -> list[str | list[int]]:
    kinds = [one.WhichOneof("expected") for one in message.predictions]
    for index, kind in enumerate(kinds):
        if kind is None or kind != kinds[0]:
            fault = "must be text or tokens" if kind is None else "must be of the first one's kind"
            param = f"predictions[{index}]"
            raise ApiError(400, f"{param}: {fault}", param=param, code="invalid_value")
    return [
        one.text if kind == "text" else list(one.token_ids.ids)
        for kind, one in zip(kinds, message.predictions, strict=True)
    ]


def _content(message: inference_pb2.GenerateRequest, body: GenerateBody) -> Content | None:
    if body.json_schema is not None:
        return JsonContent(body.json_schema, is_lenient=False)
    if body.grammar is not None:
        return LarkContent(body.grammar)
    return ANY_OBJECT if message.json_object else None


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


def speculation_message(usage: Usage) -> inference_pb2.Speculation:
    """Returns what speculation was worth."""
    return inference_pb2.Speculation(**speculation_answer(usage))


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
