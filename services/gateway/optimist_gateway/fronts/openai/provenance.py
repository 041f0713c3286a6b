"""Where an answer came from, as choices and chunks tell it."""

from collections.abc import Sequence
from typing import Any

from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.prediction_places import Place

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
        told["prompt" if segment.place.is_in_prompt else "prediction"] = _place(segment.place)
    return told


def _place(place: Place) -> dict[str, int]:
    told = {}
    if place.index is not None:
        told["message" if place.is_in_prompt else "index"] = place.index
    unit = "token_" if place.is_in_tokens else ""
    return told | {f"{unit}start": place.start, f"{unit}end": place.end}
