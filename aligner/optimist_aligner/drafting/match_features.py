"""Candidates made of places, with the features of what agrees there."""

from collections.abc import Mapping
from typing import Final

from optimist_aligner.drafting.candidates import NO_STOP, Candidate, View, class_row
from optimist_aligner.following.agreement import count_equal
from optimist_aligner.following.rule import Rule
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.layout import (
    FROM_PROMPT,
    LENGTH,
    LENGTH_CLASS,
    NO_DISTANCE,
    NUM_DISTANCES,
    NUM_LENGTHS,
    NUM_RECENCIES,
    OWN,
    OWN_SKIP,
    PREDICTED,
    PREDICTED_SKIP,
    RECENCY,
    START,
    distance_bucket,
)

_MOST_SKIP_LENGTH: Final = 8

_LENGTH: Final = START["length"]
_DISTANCE: Final = START["distance"]
_SKIP_DISTANCE: Final = START["skip_distance"]
_RECENCY: Final = START["recency"]
_SKIP_RECENCY: Final = START["skip_recency"]
_TEMPLATE_DISTANCE: Final = START["template_distance"]
_CURSOR: Final = START["cursor"]
_RULE: Final = START["rule"]
_REJECTED: Final = START["rejected"]


def make_predicted(view: View, places: Mapping[int, tuple[int, ...]]) -> list[Candidate]:
    """Returns candidates at places of what is aligned, after equal tokens.

    Args:
        view: What is looked at.
        places: Each with features of its context.
    """
    text, num_context, classes = view.text, view.num_context, view.classes
    alignment, rejected = view.alignment, view.rejected
    cursor = alignment.place if alignment.is_found else NOWHERE
    lost_at, row = alignment.lost_at, class_row(PREDICTED, view.last_class)
    candidates = []
    for place, of_context in places.items():
        token_id, length = text[place], count_equal(text, place, num_context)
        distance = distance_bucket(place - lost_at)
        features: tuple[int, ...] = (
            _LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length],
            _DISTANCE + LENGTH_CLASS[length] * NUM_DISTANCES + distance,
            row + classes[token_id],
            *of_context,
        )
        if token_id == rejected:
            features += (_rejected_feature(view, PREDICTED),)
        if place == cursor:
            features += (_CURSOR + LENGTH[length],)
        candidates.append(Candidate(token_id, PREDICTED, length, place, NO_STOP, NO_STOP, features))
    return candidates


def make_own(
    view: View, places: Mapping[int, tuple[int, ...]], *, is_prompt: bool = False
) -> list[Candidate]:
    """Returns candidates at places of the output, best first, or of the prompt.

    Args:
        view: What is looked at.
        places: Each with features of its context.
        is_prompt: Whether they are of the prompt.
    """
    text, num_context, classes = view.text, view.num_context, view.classes
    rejected, row = view.rejected, class_row(OWN, view.last_class)
    candidates = []
    for rank, (place, of_context) in enumerate(places.items()):
        token_id, length = text[place], count_equal(text, place, num_context)
        length_class = LENGTH_CLASS[length]
        recency = FROM_PROMPT if is_prompt else RECENCY[rank]
        distance = _template_distance(view, place)
        features: tuple[int, ...] = (
            _LENGTH + OWN * NUM_LENGTHS + LENGTH[length],
            _RECENCY + length_class * NUM_RECENCIES + recency,
            _TEMPLATE_DISTANCE + length_class * NUM_DISTANCES + distance,
            row + classes[token_id],
            *of_context,
        )
        if token_id == rejected:
            features += (_rejected_feature(view, OWN),)
        candidates.append(Candidate(token_id, OWN, length, place, NO_STOP, NO_STOP, features))
    return candidates


def make_skipped(view: View, place: int) -> Candidate:
    """Returns a candidate at a place of the sources, after tokens equal but for the last."""
    if place >= view.num_aligned:
        return make_own_skipped(view, place, -1)
    token_id, length = view.text[place], _count_equal_before(view, place)
    features = (
        _LENGTH + PREDICTED_SKIP * NUM_LENGTHS + length,
        _SKIP_DISTANCE + distance_bucket(place - view.alignment.lost_at),
        *_token_features(view, PREDICTED_SKIP, token_id),
    )
    return Candidate(token_id, PREDICTED_SKIP, length, place, NO_STOP, NO_STOP, features)


def make_own_skipped(view: View, place: int, rank: int) -> Candidate:
    """Returns such a candidate of the output, by how many later ones there are; -1: the prompt."""
    token_id, length = view.text[place], _count_equal_before(view, place)
    features = (
        _LENGTH + OWN_SKIP * NUM_LENGTHS + length,
        _SKIP_RECENCY + (RECENCY[rank] if rank >= 0 else FROM_PROMPT),
        _TEMPLATE_DISTANCE + _template_distance(view, place),
        *_token_features(view, OWN_SKIP, token_id),
    )
    return Candidate(token_id, OWN_SKIP, length, place, NO_STOP, NO_STOP, features)


def make_ruled(view: View, rule: Rule, place: int, resume: int, length: int) -> Candidate:
    """Returns what a rule says at a place of its replacement."""
    token_id = view.text[place]
    features = (
        _LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length],
        _CURSOR + LENGTH[length],
        _RULE + rule.sightings,
        class_row(PREDICTED, view.last_class) + view.classes[token_id],
    )
    stop = rule.place + rule.length
    return Candidate(token_id, PREDICTED, length, place, stop, resume, features)


def _token_features(view: View, kind: int, token_id: int) -> tuple[int, ...]:
    class_feature = class_row(kind, view.last_class) + view.classes[token_id]
    if token_id != view.rejected:
        return (class_feature,)
    return class_feature, _rejected_feature(view, kind)


def _rejected_feature(view: View, kind: int) -> int:
    return _REJECTED + kind * 2 + (view.alignment.num_lost > 1)


def _template_distance(view: View, place: int) -> int:
    lost_at = view.template.lost_at
    if lost_at < 0 or place < view.start:
        return NO_DISTANCE
    return distance_bucket(place - lost_at)


def _count_equal_before(view: View, place: int) -> int:
    """Returns how many tokens before the last are equal."""
    text, end = view.text, len(view.text)
    most = min(_MOST_SKIP_LENGTH, place - 1, view.num_context - 1)
    length = 0
    while length < most and text[place - length - 2] == text[end - length - 2]:
        length += 1
    return length
