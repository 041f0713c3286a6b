"""Candidates made of offsets, with the features of what agrees there."""

from collections.abc import Iterable
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View
from optimist_aligner.following.agreement import count_equal
from optimist_aligner.following.rule import Rule
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
    START,
    distance_bucket,
)

_MOST_SKIP_LENGTH: Final = 8

_LENGTH: Final = START["length"]
_CURSOR: Final = START["cursor"]


def make_predicted(view: View, offset: int, of_context: Iterable[int]) -> Candidate:
    """Returns a candidate at an offset of what is aligned, after equal tokens.

    Args:
        view: What is looked at.
        offset: Of the candidate.
        of_context: Features of its context.
    """
    alignment, token_id = view.alignment, view.text[offset]
    length = count_equal(view.text, offset, view.num_context)
    distance = LENGTH_CLASS[length] * NUM_DISTANCES + distance_bucket(offset - alignment.lost_at)
    features = [
        _LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length],
        START["distance"] + distance,
        view.class_feature(PREDICTED, token_id),
        *of_context,
        *_rejected_features(view, PREDICTED, token_id),
    ]
    if alignment.is_found and offset == alignment.offset:
        features.append(_CURSOR + LENGTH[length])
    return Candidate(token_id, PREDICTED, length, offset, features)


def make_own(view: View, offset: int, of_context: Iterable[int], recency: int) -> Candidate:
    """Returns a candidate at an offset of the output, or of the rest of the prompt.

    Args:
        view: What is looked at.
        offset: Of the candidate.
        of_context: Features of its context.
        recency: The bucket of how many better ones there are; FROM_PROMPT.
    """
    token_id, length = view.text[offset], count_equal(view.text, offset, view.num_context)
    distance = LENGTH_CLASS[length] * NUM_DISTANCES + _template_distance(view, offset)
    features = [
        _LENGTH + OWN * NUM_LENGTHS + LENGTH[length],
        START["recency"] + LENGTH_CLASS[length] * NUM_RECENCIES + recency,
        START["template_distance"] + distance,
        view.class_feature(OWN, token_id),
        *of_context,
        *_rejected_features(view, OWN, token_id),
    ]
    return Candidate(token_id, OWN, length, offset, features)


def make_skipped(view: View, offset: int, recency: int = FROM_PROMPT) -> Candidate:
    """Returns a candidate at an offset after tokens equal but for the last.

    Args:
        view: What is looked at.
        offset: Of the candidate.
        recency: The bucket of how many later ones of the output there are; FROM_PROMPT.
    """
    token_id = view.text[offset]
    length = min(_MOST_SKIP_LENGTH, count_equal(view.text, offset, view.num_context, 1))
    if offset < view.num_aligned:
        kind, distance = PREDICTED_SKIP, distance_bucket(offset - view.alignment.lost_at)
        places = [START["skip_distance"] + distance]
    else:
        kind, distance = OWN_SKIP, _template_distance(view, offset)
        places = [START["skip_recency"] + recency, START["template_distance"] + distance]
    features = [
        _LENGTH + kind * NUM_LENGTHS + length,
        *places,
        view.class_feature(kind, token_id),
        *_rejected_features(view, kind, token_id),
    ]
    return Candidate(token_id, kind, length, offset, features)


def make_ruled(view: View, rule: Rule, offset: int, resume: int, length: int) -> Candidate:
    """Returns what a rule says at an offset of its replacement."""
    token_id = view.text[offset]
    features = [
        _LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length],
        _CURSOR + LENGTH[length],
        START["rule"] + rule.sightings,
        view.class_feature(PREDICTED, token_id),
    ]
    stop = rule.offset + rule.length
    return Candidate(token_id, PREDICTED, length, offset, features, stop, resume)


def _rejected_features(view: View, kind: int, token_id: int) -> list[int]:
    if token_id != view.rejected:
        return []
    return [START["rejected"] + kind * 2 + (view.alignment.num_lost > 1)]


def _template_distance(view: View, offset: int) -> int:
    lost_at = view.template.lost_at
    if lost_at < 0 or offset < view.start:
        return NO_DISTANCE
    return distance_bucket(offset - lost_at)
