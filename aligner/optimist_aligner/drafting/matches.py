"""Candidates behind the same tokens, or behind the same but for the last one."""

from collections.abc import Iterable, Sequence
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, Sight
from optimist_aligner.drafting.match_features import (
    make_own,
    make_own_skipped,
    make_predicted,
    make_ruled,
    make_skipped,
)
from optimist_aligner.following.agreement import choose_longest
from optimist_aligner.following.alignment import CERTAIN_RUN
from optimist_aligner.model.layout import (
    LATEST,
    MOST_COUNTED,
    MOST_LENGTH,
    MOST_RANK,
    NUM_LATEST,
    NUM_SHARES,
    NUM_TOTALS,
    START,
    TOTAL,
    share_bucket,
)
from optimist_aligner.text.context_index import MOST_ORDER, Places, context_key

_RULE_PASSED: Final = START["rule_passed"]
_LATEST: Final = START["latest"]
_SHARE: Final = START["share"]
_OWN_SHARE: Final = START["own_share"]

_MOST_PLACES: Final = (4, 6, 7)
"""Of the sources, by order of the context."""
_MOST_CONVERSATION_PLACES: Final = (3, 4, 5)
_MOST_OWN_PLACES: Final = (3, 4, 6)
_ENOUGH_OWN_PLACES: Final = 8
_MOST_AMBIGUOUS: Final = 20
"""Places behind the same three tokens that are looked at more closely."""
LONG_LENGTH: Final = 8
_MOST_SKIPPED: Final = 4
_MOST_OWN_SKIPPED: Final = 3


def find_matches(sight: Sight) -> list[Candidate]:
    """Returns candidates behind the tokens that the output ends with."""
    keys = [
        context_key(sight.text, order) for order in range(1, min(MOST_ORDER, sight.num_context) + 1)
    ]
    text, end = sight.text, len(sight.text)
    places = {
        place: features
        for place, features in _find_places(sight, keys).items()
        if place < end and text[place] >= 0
    }
    aligned = {place: each for place, each in places.items() if place < sight.num_aligned}
    candidates = make_predicted(sight, aligned)
    if len(aligned) < len(places):
        prompted = [place for place in places if place >= sight.num_aligned]
        candidates += make_own(sight, dict.fromkeys(prompted, ()), is_prompt=True)
    if sight.alignment.run < CERTAIN_RUN:
        candidates += make_own(sight, _find_own_places(sight, keys))
    return _apply_rules(sight, candidates)


def find_skipped(sight: Sight, taken: set[int]) -> list[Candidate]:
    """Returns candidates behind other tokens than the last, and the same before that.

    Args:
        sight: What is looked at.
        taken: Places of the sources that are candidates already; found ones are added.
    """
    if sight.num_context < MOST_ORDER:
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
                found.append(make_skipped(sight, place))
    latest = sight.output.find(2, key)[-_MOST_AMBIGUOUS:]
    own = [before + 1 for before in latest if before + 1 < end and text[before] != last]
    for rank, place in enumerate(own[: -_MOST_OWN_SKIPPED - 1 : -1]):
        found.append(make_own_skipped(sight, place, rank))
    return found


def _find_places(sight: Sight, keys: list[int]) -> dict[int, tuple[int, ...]]:
    """Returns places of the sources, the cursor first, each with features of its context."""
    alignment = sight.alignment
    places: dict[int, tuple[int, ...]] = {}
    if alignment.is_found and alignment.pending is None:
        places[alignment.place] = ()
    if alignment.run < CERTAIN_RUN:
        for order in range(len(keys), 0, -1):
            found = sight.contexts.find(order, keys[order - 1])
            if found is not None:
                chosen = _choose(sight, found, order)
                if sight.is_rewrite:
                    places.update(dict.fromkeys(chosen, ()))
                else:
                    measured = _measure(sight, found, chosen, order)
                    places.update((each, measured[each]) for each in chosen if not places.get(each))
                if order == MOST_ORDER and _agrees_long(sight, chosen):
                    break
    return places


def _choose(sight: Sight, places: Places, order: int) -> Sequence[int]:
    near = sight.alignment.lost_at
    most = (_MOST_PLACES if sight.is_rewrite else _MOST_CONVERSATION_PLACES)[order - 1]
    if order == MOST_ORDER and places.end - places.start > most:
        ambiguous: Sequence[int] = places.nearest(near, _MOST_AMBIGUOUS)
        if not sight.is_rewrite:
            ambiguous = _merge(places.latest(_MOST_AMBIGUOUS), ambiguous)
        return choose_longest(sight.text, ambiguous, sight.num_context, near, most)
    if sight.is_rewrite:
        return places.nearest(near, most)
    return _merge(places.latest(most - most // 2), places.nearest(near, most // 2))


def _measure(
    sight: Sight, found: Places, chosen: Sequence[int], order: int
) -> dict[int, tuple[int, ...]]:
    """Returns features of places: how late they are, and how many others go on as they do."""
    latest = _LATEST + (order - 1) * NUM_LATEST
    shares = _find_shares(sight, found.latest(MOST_COUNTED), chosen, order, _SHARE)
    return {
        place: (latest + LATEST[min(found.rank(place), MOST_RANK)], share)
        for place, share in zip(chosen, shares, strict=True)
    }


def _find_shares(
    sight: Sight, counted: Sequence[int], chosen: Sequence[int], order: int, start: int
) -> list[int]:
    """Returns for each place the feature of how many of the counted ones go on as it does."""
    text, end = sight.text, len(sight.text)
    following = [text[place] for place in counted if place < end]
    total, count = len(following), following.count
    first = start + ((order - 1) * NUM_TOTALS + TOTAL[total]) * NUM_SHARES
    return [
        first + share_bucket(count(text[place]) if place < end else 0, total) for place in chosen
    ]


def _merge(latest: Sequence[int], nearest: Sequence[int]) -> Sequence[int]:
    return list(dict.fromkeys((*latest, *nearest)))


def _find_own_places(sight: Sight, keys: list[int]) -> dict[int, tuple[int, ...]]:
    """Returns places of the output, those behind more equal tokens first, then the latest.

    Each with features of its context.
    """
    places: dict[int, tuple[int, ...]] = {}
    end = len(sight.text)
    for order in range(len(keys), 0, -1):
        most = len(places) + _MOST_OWN_PLACES[order - 1]
        new: list[int] = []
        for place in _find_latest(sight, order, keys[order - 1]):
            if place < end and place not in places:
                new.append(place)
                if len(places) + len(new) == most:
                    break
        if sight.is_rewrite:
            places.update(dict.fromkeys(new, ()))
        elif new:
            counted = sight.output.find(order, keys[order - 1])[-MOST_COUNTED:]
            shares = _find_shares(sight, counted, new, order, _OWN_SHARE)
            places.update((place, (share,)) for place, share in zip(new, shares, strict=True))
        if len(places) >= _ENOUGH_OWN_PLACES:
            break
        if order == MOST_ORDER and _agrees_long(sight, places):
            break
    return places


def _agrees_long(sight: Sight, places: Iterable[int]) -> bool:
    """Returns whether as many tokens agree somewhere that few would be no evidence beside them."""
    if sight.num_context < LONG_LENGTH:
        return False
    text, tail = sight.text, sight.text[-LONG_LENGTH:]
    return any(text[place - LONG_LENGTH : place] == tail for place in places)


def _find_latest(sight: Sight, order: int, key: int) -> Sequence[int]:
    """Returns places of the output behind a context: the latest, or the longest to agree, first."""
    places = sight.output.find(order, key)
    most = _MOST_OWN_PLACES[order - 1] + 1
    if order < MOST_ORDER or len(places) <= most:
        return places[: -most - 1 : -1]
    end = len(sight.text)
    ambiguous = [place for place in places[-_MOST_AMBIGUOUS:] if place < end]
    return choose_longest(sight.text, ambiguous, sight.num_context, end, most)


def _apply_rules(sight: Sight, candidates: list[Candidate]) -> list[Candidate]:
    """Adds what rules put in place of the cursor's token."""
    alignment = sight.alignment
    length = min(alignment.run, MOST_LENGTH)
    if alignment.pending is not None:
        rule, num_said, resume = alignment.pending
        candidate = make_ruled(sight, rule, rule.place + num_said, resume, length)
        return [candidate, *candidates]
    if not alignment.is_found or sight.text[alignment.place] < 0:
        return candidates
    for rule in alignment.rules.find(sight.text, alignment.place)[:1]:
        passed = _RULE_PASSED + rule.sightings
        resume = alignment.place + len(rule.replaced)
        candidates[0].features += (passed,)
        candidates.append(make_ruled(sight, rule, rule.place, resume, length))
    return candidates
