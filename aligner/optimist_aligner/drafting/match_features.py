"""Candidates made of offsets, with the features of what agrees there."""

from collections.abc import Mapping
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View, class_row
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


def make_predicted(view: View, offsets: Mapping[int, tuple[int, ...]]) -> list[Candidate]:
    """Returns candidates at offsets of what is aligned, after equal tokens.

    Args:
        view: What is looked at.
        offsets: Each with features of its context.
    """
    text, num_context, classes = view.text, view.num_context, view.classes
    ids = text.ids
    alignment, rejected = view.alignment, view.rejected
    cursor = alignment.offset if alignment.is_found else NOWHERE
    lost_at, row = alignment.lost_at, class_row(PREDICTED, view.last_class)
    candidates = []
    for offset, of_context in offsets.items():
        token_id, length = ids[offset], count_equal(text, offset, num_context)
        distance = distance_bucket(offset - lost_at)
        candidate = Candidate(token_id, PREDICTED, length, offset)
        candidate.add_three(
            view,
            _LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length],
            _DISTANCE + LENGTH_CLASS[length] * NUM_DISTANCES + distance,
            row + classes[token_id],
        )
        for feature in of_context:
            candidate.add(view, feature)
        if token_id == rejected:
            candidate.add(view, _rejected_feature(view, PREDICTED))
        if offset == cursor:
            candidate.add(view, _CURSOR + LENGTH[length])
        candidates.append(candidate)
    return candidates


def make_own(
    view: View, offsets: Mapping[int, tuple[int, ...]], *, is_prompt: bool = False
) -> list[Candidate]:
    """Returns candidates at offsets of the output, best first, or of the prompt.

    Args:
        view: What is looked at.
        offsets: Each with features of its context.
        is_prompt: Whether they are of the prompt.
    """
    text, num_context, classes = view.text, view.num_context, view.classes
    ids = text.ids
    rejected, row = view.rejected, class_row(OWN, view.last_class)
    candidates = []
    for rank, (offset, of_context) in enumerate(offsets.items()):
        token_id, length = ids[offset], count_equal(text, offset, num_context)
        length_class = LENGTH_CLASS[length]
        recency = FROM_PROMPT if is_prompt else RECENCY[rank]
        distance = _template_distance(view, offset)
        candidate = Candidate(token_id, OWN, length, offset)
        candidate.add_three(
            view,
            _LENGTH + OWN * NUM_LENGTHS + LENGTH[length],
            _RECENCY + length_class * NUM_RECENCIES + recency,
            _TEMPLATE_DISTANCE + length_class * NUM_DISTANCES + distance,
        )
        candidate.add(view, row + classes[token_id])
        for feature in of_context:
            candidate.add(view, feature)
        if token_id == rejected:
            candidate.add(view, _rejected_feature(view, OWN))
        candidates.append(candidate)
    return candidates


def make_skipped(view: View, offset: int) -> Candidate:
    """Returns a candidate at an offset of the sources, after tokens equal but for the last."""
    if offset >= view.num_aligned:
        return make_own_skipped(view, offset, -1)
    token_id, length = view.text.ids[offset], _count_equal_before(view, offset)
    candidate = Candidate(token_id, PREDICTED_SKIP, length, offset)
    candidate.add(view, _LENGTH + PREDICTED_SKIP * NUM_LENGTHS + length)
    candidate.add(view, _SKIP_DISTANCE + distance_bucket(offset - view.alignment.lost_at))
    _add_token_features(view, candidate)
    return candidate


def make_own_skipped(view: View, offset: int, rank: int) -> Candidate:
    """Returns such a candidate of the output, by how many later ones there are; -1: the prompt."""
    token_id, length = view.text.ids[offset], _count_equal_before(view, offset)
    candidate = Candidate(token_id, OWN_SKIP, length, offset)
    candidate.add_three(
        view,
        _LENGTH + OWN_SKIP * NUM_LENGTHS + length,
        _SKIP_RECENCY + (RECENCY[rank] if rank >= 0 else FROM_PROMPT),
        _TEMPLATE_DISTANCE + _template_distance(view, offset),
    )
    _add_token_features(view, candidate)
    return candidate


def make_ruled(view: View, rule: Rule, offset: int, resume: int, length: int) -> Candidate:
    """Returns what a rule says at an offset of its replacement."""
    token_id = view.text.ids[offset]
    stop = rule.offset + rule.length
    candidate = Candidate(token_id, PREDICTED, length, offset, stop, resume)
    candidate.add_three(
        view,
        _LENGTH + PREDICTED * NUM_LENGTHS + LENGTH[length],
        _CURSOR + LENGTH[length],
        _RULE + rule.sightings,
    )
    candidate.add(view, class_row(PREDICTED, view.last_class) + view.classes[token_id])
    return candidate


def _add_token_features(view: View, candidate: Candidate) -> None:
    kind, token_id = candidate.kind, candidate.token_id
    candidate.add(view, class_row(kind, view.last_class) + view.classes[token_id])
    if token_id == view.rejected:
        candidate.add(view, _rejected_feature(view, kind))


def _rejected_feature(view: View, kind: int) -> int:
    return _REJECTED + kind * 2 + (view.alignment.num_lost > 1)


def _template_distance(view: View, offset: int) -> int:
    lost_at = view.template.lost_at
    if lost_at < 0 or offset < view.start:
        return NO_DISTANCE
    return distance_bucket(offset - lost_at)


def _count_equal_before(view: View, offset: int) -> int:
    """Returns how many tokens before the last are equal."""
    ids, end = view.text.ids, len(view.text)
    most = min(_MOST_SKIP_LENGTH, offset - 1, view.num_context - 1)
    length = 0
    while length < most and ids[offset - length - 2] == ids[end - length - 2]:
        length += 1
    return length
