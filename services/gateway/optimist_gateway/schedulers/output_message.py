"""What the scheduler says about a step, from its message to plain values."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_from_bytes, from_bytes
from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.output import (
    Finished,
    FinishReason,
    StepLogprobs,
    StepOutput,
    TokenLogprobs,
)

_REASONS = {
    scheduler_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    scheduler_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    scheduler_pb2.FINISH_REASON_REFUSED: FinishReason.REFUSED,
    scheduler_pb2.FINISH_REASON_OVERLOADED: FinishReason.OVERLOADED,
    scheduler_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
    scheduler_pb2.FINISH_REASON_ABORTED: FinishReason.ABORTED,
}


class _Sources(dict[int, DraftSource]):
    """Where drafts came from, by number; what only a later scheduler knows is the target's."""

    def __missing__(self, number: int) -> DraftSource:
        return DraftSource.TARGET


# Quicker than to call the enumeration, with each request and step.
_SOURCES = _Sources({source.value: source for source in DraftSource})
_NOWHERE: tuple[None, None] = None, None
"""Positions of a request that wants none."""


def read_outputs(
    response: scheduler_pb2.ConnectResponse, now: float = 0.0
) -> Iterator[tuple[int, StepOutput]]:
    """Yields the outputs of a step with their handles.

    They are made one by one: each takes the memory that the one before it has left.

    Args:
        response: The message.
        now: When it came, by `time.perf_counter`.

    Raises:
        ValueError: The parts of the message do not fit together.
    """
    finished = {one.handle: _finished(one) for one in response.finished}
    logprobs = {one.handle: one for one in response.logprobs}
    positions = {one.handle: one for one in response.prediction_positions}
    num_tokens = from_bytes(response.num_tokens).tolist()
    token_ids = from_bytes(response.token_ids).tolist()
    if sum(num_tokens) != len(token_ids):
        raise ValueError(f"{len(token_ids)} tokens instead of {sum(num_tokens)}")
    handles = from_bytes(response.handles).tolist()
    start = 0
    for handle, count, accepted, source in zip(
        handles,
        num_tokens,
        from_bytes(response.num_accepted_tokens).tolist(),
        map(_SOURCES.__getitem__, from_bytes(response.draft_sources).tolist()),
        strict=True,
    ):
        tokens = token_ids[start : start + count]
        predicted, prompted = _positions(positions, handle, accepted) if positions else _NOWHERE
        yield (
            handle,
            StepOutput(
                tokens,
                accepted,
                source,
                finished.get(handle) if finished else None,
                _logprobs(logprobs, handle, count) if logprobs else None,
                predicted,
                prompted,
                now,
            ),
        )
        start += count
    for handle in (finished.keys() | logprobs.keys()).difference(handles):
        known = _logprobs(logprobs, handle, 0)
        yield handle, StepOutput([], finished=finished.get(handle), logprobs=known, received=now)


def _finished(message: scheduler_pb2.Finished) -> Finished:
    num_tokens_by_source: Counter[DraftSource] = Counter()
    for source, count in enumerate(from_bytes(message.num_tokens_by_source).tolist()):
        if count:
            num_tokens_by_source[_SOURCES[source]] += count
    reason = _REASONS.get(message.reason)
    text = message.message
    if reason is None:
        reason = FinishReason.ERROR
        text = f"it ended for a reason that this gateway does not know ({message.reason}) {text}"
    return Finished(
        reason=reason,
        message=text.strip(),
        accepted_prediction_tokens=message.accepted_prediction_tokens,
        rejected_prediction_tokens=message.rejected_prediction_tokens,
        num_passes=message.num_passes,
        num_tokens_by_source=num_tokens_by_source,
        num_drafted_tokens=message.num_drafted_tokens,
        queue_seconds=message.queue_us / 1e6,
        num_cached_tokens=message.num_cached_tokens,
    )


def _positions(
    messages: Mapping[int, scheduler_pb2.PredictionPositions], handle: int, num_accepted: int
) -> tuple[list[int] | None, list[int] | None]:
    """Returns the positions in the predictions and in the prompt."""
    if (message := messages.get(handle)) is None:
        return _NOWHERE
    predicted = _column(message.positions, num_accepted, -1, "predictions")
    if not message.prompt_positions:
        return predicted, None
    return predicted, _column(message.prompt_positions, num_accepted, 0, "prompt")


def _column(data: bytes, num_accepted: int, least: int, text: str) -> list[int]:
    positions: list[int] = from_bytes(data).tolist()
    if len(positions) != num_accepted:
        raise ValueError(
            f"{len(positions)} positions in the {text} for {num_accepted} accepted drafts"
        )
    if any(position < least for position in positions):
        raise ValueError(f"a position in the {text} is {min(positions)}")
    return positions


def _logprobs(
    messages: Mapping[int, scheduler_pb2.Logprobs], handle: int, num_tokens: int
) -> StepLogprobs | None:
    if (message := messages.get(handle)) is None:
        return None
    num_prompt = message.num_prompt_tokens
    logprobs: list[float] = floats_from_bytes(message.logprobs).tolist()
    # Requests may want those of the prompt only.
    num_new = len(logprobs) - num_prompt
    widths = message.num_prompt_candidates, message.num_candidates
    if min(num_prompt, *widths) < 0 or num_new not in (0, num_tokens):
        raise ValueError(
            f"{len(logprobs)} log-probabilities of {num_prompt} tokens of a prompt and "
            f"{num_tokens} new ones"
        )
    token_ids: list[int] = from_bytes(message.candidate_token_ids).tolist()
    of_candidates: list[float] = floats_from_bytes(message.candidate_logprobs).tolist()
    number = num_prompt * widths[0] + num_new * widths[1]
    if len(token_ids) != number or len(of_candidates) != number:
        raise ValueError(
            f"{len(token_ids)} candidates and {len(of_candidates)} log-probabilities of them "
            f"instead of {number}"
        )
    columns = iter(logprobs), iter(token_ids), iter(of_candidates)
    return StepLogprobs(
        first_prompt_position=message.first_prompt_position,
        prompt=_take(columns, num_prompt, widths[0]),
        tokens=_take(columns, num_new, widths[1]),
    )


def _take(
    columns: tuple[Iterator[float], Iterator[int], Iterator[float]], number: int, width: int
) -> list[TokenLogprobs]:
    """Takes the next tokens, each with as many candidates, from the columns."""
    logprobs, token_ids, of_candidates = columns
    return [
        TokenLogprobs(logprob, list(islice(token_ids, width)), list(islice(of_candidates, width)))
        for logprob in islice(logprobs, number)
    ]
