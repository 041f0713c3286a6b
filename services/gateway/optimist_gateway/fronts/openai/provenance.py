"""Where an answer came from, as choices and chunks say it."""

from collections.abc import Sequence
from typing import NotRequired, Required

from typing_extensions import TypedDict

from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.prediction_places import Place

PROMPT = "prompt"
"""Source of an echoed prompt."""


class _Span(TypedDict, total=False):
    start: int
    end: int
    token_start: int
    token_end: int


class PredictionSpan(_Span):
    """Where a segment is in a prediction."""

    index: Required[int]


class PromptSpan(_Span):
    """Where a segment is in the prompt."""

    message: NotRequired[int]


class SegmentAnswer(TypedDict):
    """Text of one source."""

    source: str
    text: str
    num_tokens: int
    prediction: NotRequired[PredictionSpan]
    prompt: NotRequired[PromptSpan]


def provenance(segments: Sequence[Segment]) -> list[SegmentAnswer]:
    """Returns the `provenance` of a choice or chunk."""
    return [_segment(segment) for segment in segments]


def _segment(segment: Segment) -> SegmentAnswer:
    answer: SegmentAnswer = {
        "source": segment.source.label if segment.source is not None else PROMPT,
        "text": segment.text,
        "num_tokens": segment.num_tokens,
    }
    place = segment.place
    if place is None:
        return answer
    if not place.is_in_prompt:
        answer["prediction"] = {"index": place.index or 0, **_span(place)}
    else:
        span: PromptSpan = {**_span(place)}  # type: ignore[typeddict-item]
        if place.index is not None:
            span["message"] = place.index
        answer["prompt"] = span
    return answer


def _span(place: Place) -> _Span:
    if place.is_in_tokens:
        return {"token_start": place.start, "token_end": place.end}
    return {"start": place.start, "end": place.end}
