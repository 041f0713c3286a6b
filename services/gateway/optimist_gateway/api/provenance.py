"""Where an answer came from, as choices and chunks tell it."""

from collections.abc import Sequence
from typing import Any

from optimist_gateway.core.prediction_places import Place
from optimist_gateway.core.provenance import Segment

PROMPT = "prompt"
"""Source of an echoed prompt."""


def provenance(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Returns the `provenance` of a choice or chunk."""
    return [_segment(segment) for segment in segments]


def _segment(segment: Segment) -> dict[str, Any]:
    told: dict[str, Any] = {
        "source": segment.source.label if segment.source is not None else PROMPT,
        "text": segment.text,
        "num_tokens": segment.num_tokens,
    }
    if segment.place is not None:
        told["prediction"] = _place(segment.place)
    return told


def _place(place: Place) -> dict[str, int]:
    if place.is_in_tokens:
        return {"index": place.index, "token_start": place.start, "token_end": place.end}
    return {"index": place.index, "start": place.start, "end": place.end}
