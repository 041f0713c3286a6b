"""Candidates after the same tokens, or after the same but for the last one."""

from collections.abc import Iterable, Sequence
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View
from optimist_aligner.drafting.match_features import (
    make_own,
    make_own_skipped,
    make_predicted,
    make_ruled,
    make_skipped,
)
from optimist_aligner.following.agreement import choose_longest, count_equal
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
from optimist_aligner.text.context_index import MOST_ORDER, Offsets, context_key

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
"""Offsets after the same three tokens that are looked at more closely."""
LONG_LENGTH: Final = 8
_MOST_SKIPPED: Final = 4
_MOST_OWN_SKIPPED: Final = 3


def find_matches(view: View) -> list[Candidate]:
    """Returns candidates after the tokens that the output ends with."""
    ids, end = view.text.ids, len(view.text)
    keys = [context_key(ids, order) for order in range(1, min(MOST_ORDER, view.num_context) + 1)]
    aligned: dict[int, tuple[int, ...]] = {}
    prompted: dict[int, tuple[int, ...]] = {}
    for offset, features in _find_offsets(view, keys).items():
        if offset < end and ids[offset] >= 0:
            if offset < view.num_aligned:
                aligned[offset] = features
            else:
                prompted[offset] = ()
    candidates = make_predicted(view, aligned)
    if prompted:
        candidates += make_own(view, prompted, is_prompt=True)
    if view.alignment.run < CERTAIN_RUN:
        candidates += make_own(view, _find_own_offsets(view, keys))
    return _apply_rules(view, candidates)


def find_skipped(view: View, taken: set[int]) -> list[Candidate]:
    """Returns candidates after other tokens than the last, and the same before that.

    Args:
        view: What is looked at.
        taken: Offsets of the sources that are candidates already; found ones are added.
    """
    if view.num_context < MOST_ORDER:
        return []
    ids, end = view.text.ids, len(view.text)
    last, key = ids[-1], context_key(ids[-MOST_ORDER:-1], 2)
    found = []
    offsets = view.contexts.find(2, key)
    if offsets is not None:
        for before in offsets.nearest(view.alignment.lost_at - 1, _MOST_SKIPPED):
            offset = before + 1
            if offset >= view.start or offset in taken or min(ids[before], ids[offset]) < 0:
                continue
            if ids[before] != last:
                taken.add(offset)
                found.append(make_skipped(view, offset))
    latest = view.output.find_latest(2, key, _MOST_AMBIGUOUS)
    own = [before + 1 for before in latest if before + 1 < end and ids[before] != last]
    for rank, offset in enumerate(own[: -_MOST_OWN_SKIPPED - 1 : -1]):
        found.append(make_own_skipped(view, offset, rank))
    return found


def _find_offsets(view: View, keys: list[int]) -> dict[int, tuple[int, ...]]:
    """Returns offsets of the sources, the cursor first, each with features of its context."""
    alignment = view.alignment
    offsets: dict[int, tuple[int, ...]] = {}
    if alignment.is_found and alignment.pending is None:
        offsets[alignment.offset] = ()
    if alignment.run < CERTAIN_RUN:
        for order in range(len(keys), 0, -1):
            found = view.contexts.find(order, keys[order - 1])
            if found is not None:
                chosen = _choose(view, found, order)
                if view.is_rewrite:
                    for offset in chosen:
                        offsets[offset] = ()
                else:
                    measured = _measure(view, found, chosen, order)
                    offsets.update(
                        (each, measured[each]) for each in chosen if not offsets.get(each)
                    )
                if order == MOST_ORDER and _agrees_long(view, chosen):
                    break
    return offsets


def _choose(view: View, offsets: Offsets, order: int) -> Sequence[int]:
    near = view.alignment.lost_at
    most = (_MOST_PLACES if view.is_rewrite else _MOST_CONVERSATION_PLACES)[order - 1]
    if order == MOST_ORDER and offsets.end - offsets.start > most:
        ambiguous: Sequence[int] = offsets.nearest(near, _MOST_AMBIGUOUS)
        if not view.is_rewrite:
            ambiguous = _merge(offsets.latest(_MOST_AMBIGUOUS), ambiguous)
        return choose_longest(view.text, ambiguous, view.num_context, near, most)
    if view.is_rewrite:
        return offsets.nearest(near, most)
    return _merge(offsets.latest(most - most // 2), offsets.nearest(near, most // 2))


def _measure(
    view: View, found: Offsets, chosen: Sequence[int], order: int
) -> dict[int, tuple[int, ...]]:
    """Returns features of offsets: how late they are, and how many others go on as they do."""
    latest = _LATEST + (order - 1) * NUM_LATEST
    shares = _find_shares(view, found.latest(MOST_COUNTED), chosen, order, _SHARE)
    return {
        offset: (latest + LATEST[min(found.rank(offset), MOST_RANK)], share)
        for offset, share in zip(chosen, shares, strict=True)
    }


def _find_shares(
    view: View, counted: Sequence[int], chosen: Sequence[int], order: int, start: int
) -> list[int]:
    """Returns for each offset the feature of how many of the counted ones go on as it does."""
    ids, end = view.text.ids, len(view.text)
    following = [ids[offset] for offset in counted if offset < end]
    total, count = len(following), following.count
    first = start + ((order - 1) * NUM_TOTALS + TOTAL[total]) * NUM_SHARES
    return [
        first + share_bucket(count(ids[offset]) if offset < end else 0, total) for offset in chosen
    ]


def _merge(latest: Sequence[int], nearest: Sequence[int]) -> Sequence[int]:
    return list(dict.fromkeys((*latest, *nearest)))


def _find_own_offsets(view: View, keys: list[int]) -> dict[int, tuple[int, ...]]:
    """Returns offsets of the output, those after more equal tokens first, then the latest.

    Each with features of its context.
    """
    offsets: dict[int, tuple[int, ...]] = {}
    end = len(view.text)
    for order in range(len(keys), 0, -1):
        most = len(offsets) + _MOST_OWN_PLACES[order - 1]
        new: list[int] = []
        for offset in _find_latest(view, order, keys[order - 1]):
            if offset < end and offset not in offsets:
                new.append(offset)
                if len(offsets) + len(new) == most:
                    break
        if view.is_rewrite:
            for offset in new:
                offsets[offset] = ()
        elif new:
            counted = view.output.find_latest(order, keys[order - 1], MOST_COUNTED)
            shares = _find_shares(view, counted, new, order, _OWN_SHARE)
            offsets.update((offset, (share,)) for offset, share in zip(new, shares, strict=True))
        if len(offsets) >= _ENOUGH_OWN_PLACES:
            break
        if order == MOST_ORDER and _agrees_long(view, offsets):
            break
    return offsets


def _agrees_long(view: View, offsets: Iterable[int]) -> bool:
    """Returns whether as many tokens agree somewhere that few would be no evidence beside them."""
    if view.num_context < LONG_LENGTH:
        return False
    return any(
        count_equal(view.text, offset, view.num_context) >= LONG_LENGTH for offset in offsets
    )


def _find_latest(view: View, order: int, key: int) -> Sequence[int]:
    """Returns offsets of the output after a context: the latest, or the longest to agree, first."""
    most = _MOST_OWN_PLACES[order - 1] + 1
    is_ambiguous = order == MOST_ORDER
    offsets = view.output.find_latest(order, key, _MOST_AMBIGUOUS if is_ambiguous else most)
    if len(offsets) <= most:
        return offsets[::-1]
    end = len(view.text)
    ambiguous = [offset for offset in offsets if offset < end]
    return choose_longest(view.text, ambiguous, view.num_context, end, most)


def _apply_rules(view: View, candidates: list[Candidate]) -> list[Candidate]:
    """Adds what rules put in place of the cursor's token."""
    alignment = view.alignment
    length = min(alignment.run, MOST_LENGTH)
    if alignment.pending is not None:
        rule, num_said, resume = alignment.pending
        candidate = make_ruled(view, rule, rule.offset + num_said, resume, length)
        return [candidate, *candidates]
    if not alignment.is_found or view.text.ids[alignment.offset] < 0:
        return candidates
    for rule in alignment.rules.find(view.text, alignment.offset)[:1]:
        passed = _RULE_PASSED + rule.sightings
        resume = alignment.offset + len(rule.replaced)
        candidates[0].add(view, passed)
        candidates.append(make_ruled(view, rule, rule.offset, resume, length))
    return candidates
