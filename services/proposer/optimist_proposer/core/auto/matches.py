"""Candidates behind the same tokens, or behind the same but for the last one."""

from collections.abc import Sequence

from optimist_proposer.core.auto.agreement import choose_longest, count_equal
from optimist_proposer.core.auto.alignment import CERTAIN_RUN
from optimist_proposer.core.auto.candidates import _START, NO_STOP, Candidate, Sight, class_row
from optimist_proposer.core.auto.context_index import MOST_ORDER, Places, context_key
from optimist_proposer.core.auto.layout import (
    FROM_PROMPT,
    LENGTH,
    LENGTH_CLASS,
    MOST_LENGTH,
    NO_DISTANCE,
    NUM_DISTANCES,
    NUM_LENGTHS,
    NUM_RECENCIES,
    NUM_SIGHTINGS,
    OWN,
    OWN_SKIP,
    PREDICTED,
    PREDICTED_SKIP,
    RECENCY,
    distance_bucket,
)
from optimist_proposer.core.auto.rule import Rule

_MOST_PLACES = (6, 10, 10)
"""Of the sources, by order of the context."""
_MOST_OWN_PLACES = (4, 8, 8)
_ENOUGH_OWN_PLACES = 12
_MOST_AMBIGUOUS = 32
"""Places behind the same three tokens that are looked at more closely."""
_MOST_SKIPPED = 6
_MOST_OWN_SKIPPED = 4
_MOST_SKIP_LENGTH = 8


def find_matches(sight: Sight) -> list[Candidate]:
    """Returns candidates behind the tokens that the output ends with."""
    candidates = []
    keys = [
        context_key(sight.text, order) for order in range(1, min(MOST_ORDER, sight.num_output) + 1)
    ]
    for place in _find_places(sight, keys):
        if sight.text[place] >= 0:
            make = _make_predicted if place < sight.num_predicted else _make_prompted
            length = count_equal(sight.text, place, sight.num_output)
            candidates.append(make(sight, place, length))
    own = _find_own_places(sight, keys) if sight.alignment.run < CERTAIN_RUN else ()
    for rank, place in enumerate(own):
        length = count_equal(sight.text, place, sight.num_output)
        candidates.append(_make_own(sight, place, length, rank))
    return _apply_rules(sight, candidates)


def find_skipped(sight: Sight, taken: set[int]) -> list[Candidate]:
    """Returns candidates behind other tokens than the last, and the same before that.

    Args:
        sight: What is looked at.
        taken: Places of the sources that are candidates already; found ones are added.
    """
    if sight.num_output < MOST_ORDER:
        return []
    text, end, last = sight.text, len(sight.text), sight.text[-1]
    key = context_key(text[-MOST_ORDER:-1], 2)
    found = []
    places = sight.contexts.find(2, key)
    if places is not None:
        for before in places.nearest(sight.alignment.lost_at - 1, _MOST_SKIPPED):
            place = before + 1
            if place >= sight.start or place in taken or min(text[before], text[place]) < 0:
                continue
            if text[before] != last:
                taken.add(place)
                found.append(_make_skipped(sight, place))
    num_own = 0
    for before in reversed(sight.output.find(2, key)):
        place = before + 1
        if place < end and text[before] != last:
            found.append(_make_own_skipped(sight, place, num_own))
            num_own += 1
            if num_own == _MOST_OWN_SKIPPED:
                break
    return found


def _find_places(sight: Sight, keys: list[int]) -> dict[int, None]:
    """Returns places of the sources, the cursor first."""
    alignment = sight.alignment
    places: dict[int, None] = {}
    if alignment.is_found and alignment.pending is None:
        places[alignment.place] = None
    if alignment.run < CERTAIN_RUN:
        for order in range(len(keys), 0, -1):
            found = sight.contexts.find(order, keys[order - 1])
            if found is not None:
                places.update(dict.fromkeys(_choose(sight, found, order)))
    return places


def _choose(sight: Sight, places: Places, order: int) -> Sequence[int]:
    near, most = sight.alignment.lost_at, _MOST_PLACES[order - 1]
    if order < MOST_ORDER or places.end - places.start <= most:
        return places.nearest(near, most)
    ambiguous = places.nearest(near, _MOST_AMBIGUOUS)
    return choose_longest(sight.text, ambiguous, sight.num_output, near, most)


def _find_own_places(sight: Sight, keys: list[int]) -> dict[int, None]:
    """Returns places of the output, those behind more equal tokens first, then the latest."""
    places: dict[int, None] = {}
    end = len(sight.text)
    for order in range(len(keys), 0, -1):
        most = len(places) + _MOST_OWN_PLACES[order - 1]
        for place in _find_latest(sight, order, keys[order - 1]):
            if place < end:
                places[place] = None
                if len(places) == most:
                    break
        if len(places) >= _ENOUGH_OWN_PLACES or sight.alignment.run >= CERTAIN_RUN:
            break
    return places


def _find_latest(sight: Sight, order: int, key: int) -> Sequence[int]:
    """Returns places of the output behind a context: the latest, or the longest to agree, first."""
    places = sight.output.find(order, key)
    most = _MOST_OWN_PLACES[order - 1] + 1
    if order < MOST_ORDER or len(places) <= most:
        return places[: -most - 1 : -1]
    end = len(sight.text)
    ambiguous = [place for place in places[-_MOST_AMBIGUOUS:] if place < end]
    return choose_longest(sight.text, ambiguous, sight.num_output, end, most)


def _count_equal_before(sight: Sight, place: int) -> int:
    """Returns the same but for the last token, which is another."""
    text, end = sight.text, len(sight.text)
    most = min(_MOST_SKIP_LENGTH, place - 1, sight.num_output - 1)
    length = 0
    while length < most and text[place - length - 2] == text[end - length - 2]:
        length += 1
    return length


def _features(sight: Sight, kind: int, token_id: int) -> tuple[int, ...]:
    class_feature = class_row(kind, sight.last_class) + sight.classes[token_id]
    if token_id != sight.rejected:
        return (class_feature,)
    return class_feature, _START["rejected"] + kind * 2 + (sight.alignment.num_lost > 1)


def _make_predicted(sight: Sight, place: int, length: int) -> Candidate:
    token_id, alignment = sight.text[place], sight.alignment
    distance = distance_bucket(place - alignment.lost_at)
    features = (
        _START["length"] + PREDICTED * NUM_LENGTHS + LENGTH[length],
        _START["distance"] + LENGTH_CLASS[length] * NUM_DISTANCES + distance,
        *_features(sight, PREDICTED, token_id),
    )
    if alignment.is_found and place == alignment.place:
        features = (*features, _START["cursor"] + LENGTH[length])
    return Candidate(token_id, PREDICTED, length, place, NO_STOP, NO_STOP, features)


def _make_prompted(sight: Sight, place: int, length: int) -> Candidate:
    return _make_own(sight, place, length, -1)


def _make_own(sight: Sight, place: int, length: int, rank: int) -> Candidate:
    token_id, length_class = sight.text[place], LENGTH_CLASS[length]
    recency = RECENCY[rank] if rank >= 0 else FROM_PROMPT
    features = (
        _START["length"] + OWN * NUM_LENGTHS + LENGTH[length],
        _START["recency"] + length_class * NUM_RECENCIES + recency,
        _START["template_distance"]
        + length_class * NUM_DISTANCES
        + _template_distance(sight, place),
        *_features(sight, OWN, token_id),
    )
    return Candidate(token_id, OWN, length, place, NO_STOP, NO_STOP, features)


def _make_skipped(sight: Sight, place: int) -> Candidate:
    if place >= sight.num_predicted:
        return _make_own_skipped(sight, place, -1)
    token_id, length = sight.text[place], _count_equal_before(sight, place)
    features = (
        _START["length"] + PREDICTED_SKIP * NUM_LENGTHS + length,
        _START["skip_distance"] + distance_bucket(place - sight.alignment.lost_at),
        *_features(sight, PREDICTED_SKIP, token_id),
    )
    return Candidate(token_id, PREDICTED_SKIP, length, place, NO_STOP, NO_STOP, features)


def _make_own_skipped(sight: Sight, place: int, rank: int) -> Candidate:
    token_id, length = sight.text[place], _count_equal_before(sight, place)
    recency = RECENCY[rank] if rank >= 0 else FROM_PROMPT
    features = (
        _START["length"] + OWN_SKIP * NUM_LENGTHS + length,
        _START["skip_recency"] + recency,
        _START["template_distance"] + _template_distance(sight, place),
        *_features(sight, OWN_SKIP, token_id),
    )
    return Candidate(token_id, OWN_SKIP, length, place, NO_STOP, NO_STOP, features)


def _template_distance(sight: Sight, place: int) -> int:
    if sight.template.lost_at < 0 or place < sight.start:
        return NO_DISTANCE
    return distance_bucket(place - sight.template.lost_at)


def _apply_rules(sight: Sight, candidates: list[Candidate]) -> list[Candidate]:
    """Adds what rules put in place of the cursor's token."""
    alignment = sight.alignment
    length = min(alignment.run, MOST_LENGTH)
    if alignment.pending is not None:
        rule, num_said, resume = alignment.pending
        candidate = _make_ruled(sight, rule, rule.place + num_said, resume, length)
        return [candidate, *candidates]
    if not alignment.is_found or sight.text[alignment.place] < 0:
        return candidates
    for rule in alignment.rules.find(sight.text, alignment.place)[:1]:
        passed = _START["rule_passed"] + rule.sightings
        resume = alignment.place + len(rule.replaced)
        first = candidates[0]
        candidates[0] = first._replace(features=(*first.features, passed))
        candidates.append(_make_ruled(sight, rule, rule.place, resume, length))
    return candidates


def _make_ruled(sight: Sight, rule: Rule, place: int, resume: int, length: int) -> Candidate:
    token_id = sight.text[place]
    features = (
        _START["length"] + PREDICTED * NUM_LENGTHS + LENGTH[length],
        _START["cursor"] + LENGTH[length],
        _START["rule"] + min(rule.sightings, NUM_SIGHTINGS - 1),
        class_row(PREDICTED, sight.last_class) + sight.classes[token_id],
    )
    stop = rule.place + rule.length
    return Candidate(token_id, PREDICTED, length, place, stop, resume, features)
