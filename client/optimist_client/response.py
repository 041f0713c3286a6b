"""From the messages of an answer to plain values."""

from collections.abc import Iterable

from optimist.common.v1.draft_source_pb2 import DRAFT_SOURCE_UNSPECIFIED, DraftSource
from optimist.v1 import inference_pb2
from optimist_client.answer import (
    Answer,
    Model,
    PredictionPlace,
    PromptPlace,
    Result,
    Segment,
    Speculation,
    Step,
    TokenLogprob,
    Usage,
)

_FINISH_REASONS = {
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
}


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the server's name of a request, from the initial metadata; empty without one."""
    return str(dict(metadata or ()).get("x-request-id", ""))


def step_of(message: inference_pb2.Step) -> Step:
    """Returns what one forward pass added."""
    return Step(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        num_accepted_tokens=message.num_accepted_tokens,
        source=_source(message.source),
        segments=tuple(_segment(one) for one in message.segments),
        logprobs=_logprobs(message.logprobs),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
    )


def result_of(summary: inference_pb2.Summary, steps: Iterable[Step]) -> Result:
    """Returns the whole answers that all steps of a request make."""
    steps_of: dict[int, list[Step]] = {}
    for step in steps:
        steps_of.setdefault(step.index, []).append(step)
    return Result(
        request_id=summary.request_id,
        model=summary.model,
        answers=tuple(_answer(steps_of[index]) for index in sorted(steps_of)),
        usage=_usage(summary.usage),
        speculation=(
            _speculation(summary.speculation) if summary.HasField("speculation") else None
        ),
    )


def model_of(message: inference_pb2.Model) -> Model:
    """Returns the description of a model."""
    return Model(message.name, message.max_model_len, message.vocab_size)


def _answer(steps: list[Step]) -> Answer:
    return Answer(
        text="".join(step.text for step in steps),
        token_ids=tuple(token for step in steps for token in step.token_ids),
        finish_reason=steps[-1].finish_reason or "",
        segments=tuple(segment for step in steps for segment in step.segments),
        logprobs=tuple(logprob for step in steps for logprob in step.logprobs),
    )


def _segment(message: inference_pb2.Segment) -> Segment:
    place, prompt = message.prediction, message.prompt
    return Segment(
        text=message.text,
        num_tokens=message.num_tokens,
        source=_source(message.source),
        prediction=(
            PredictionPlace(place.index, place.start, place.end)
            if message.HasField("prediction")
            else None
        ),
        run=message.run,
        prompt=(
            PromptPlace(
                prompt.message if prompt.HasField("message") else None,
                prompt.start,
                prompt.end,
                prompt.is_in_tokens,
            )
            if message.HasField("prompt")
            else None
        ),
    )


def _logprobs(messages: Iterable[inference_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(one.token_id, one.text, one.token_bytes, one.logprob, _logprobs(one.top))
        for one in messages
    )


def _usage(message: inference_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        accepted_prediction_tokens=message.accepted_prediction_tokens,
        rejected_prediction_tokens=(
            message.rejected_prediction_tokens
            if message.HasField("rejected_prediction_tokens")
            else None
        ),
        num_passes=message.num_passes,
        tokens_by_source=dict(message.tokens_by_source),
        cached_prompt_tokens=message.cached_prompt_tokens,
    )


def _speculation(message: inference_pb2.Speculation) -> Speculation:
    return Speculation(
        num_passes=message.num_passes,
        num_drafted_tokens=(
            message.num_drafted_tokens if message.HasField("num_drafted_tokens") else None
        ),
        num_accepted_tokens=message.num_accepted_tokens,
        acceptance_rate=(message.acceptance_rate if message.HasField("acceptance_rate") else None),
        mean_accepted_length=(
            message.mean_accepted_length if message.HasField("mean_accepted_length") else None
        ),
        accepted_length_histogram=tuple(message.accepted_length_histogram),
    )


def _source(number: "DraftSource.ValueType") -> str:
    if number == DRAFT_SOURCE_UNSPECIFIED:
        return "target"
    if number not in DraftSource.values():
        # A newer server may know more of them.
        return f"source_{number}"
    return DraftSource.Name(number).removeprefix("DRAFT_SOURCE_").lower()
