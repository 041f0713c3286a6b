"""From the pieces of an answer to messages."""

from collections.abc import Sequence

from optimist.v1 import inference_pb2
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.logprobs import TokenLogprob
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.answer.usage import Speculation, Usage

_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.STOP_STRING: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


def step_response(index: int, piece: Piece) -> inference_pb2.GenerateResponse:
    """Returns the event that a piece of an answer is.

    Args:
        index: Which of the answers.
        piece: What a step added to it; its finish reason is no failure.
    """
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
    return inference_pb2.Speculation(
        num_passes=speculation.num_passes,
        num_drafted_tokens=speculation.num_drafted_tokens,
        num_accepted_tokens=speculation.num_accepted_tokens,
        acceptance_rate=speculation.acceptance_rate,
        mean_accepted_length=speculation.mean_accepted_length,
        accepted_length_histogram=speculation.accepted_length_histogram,
    )


def _segment(segment: Segment) -> inference_pb2.Segment:
    message = inference_pb2.Segment(
        text=segment.text,
        num_tokens=segment.num_tokens,
        source=int(segment.source or 0),  # type: ignore[arg-type]
        run=segment.run,
    )
    if segment.span is not None:
        span = segment.span
        if span.is_in_prompt:
            message.prompt.start, message.prompt.end = span.start, span.end
            message.prompt.is_in_tokens = span.is_in_tokens
            if span.index is not None:
                message.prompt.message = span.index
        else:
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
