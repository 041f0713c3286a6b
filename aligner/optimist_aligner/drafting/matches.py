"""Candidates after the same tokens, or after the same but for the last one."""

from collections.abc import Iterable, Sequence
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View
from optimist_aligner.drafting.match_features import (
    make_own,
    make_predicted,
    make_ruled,
    make_skipped,
)
from optimist_aligner.following.agreement import choose_longest, count_equal
from optimist_aligner.model.layout import (
    FROM_PROMPT,
    LATEST,
    MOST_COUNTED,
    MOST_LENGTH,
    MOST_RANK,
    NUM_LATEST,
    NUM_SHARES,
    NUM_TOTALS,
    RECENCY,
    START,
    TOTAL,
    share_bucket,
)
from optimist_aligner.text.context_index import MOST_ORDER, Context, Offsets

Features = tuple[int, ...]

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
    orders = range(min(MOST_ORDER, view.num_context), 0, -1)
    contexts = [tuple(view.text[-order:]) for order in orders]
    candidates: list[Candidate] = []
    prompted: list[Candidate] = []
    for offset, features in _find_offsets(view, contexts).items():
        if offset < len(view.text) and view.text[offset] >= 0:
            if offset < view.num_aligned:
                candidates.append(make_predicted(view, offset, features))
            else:
                prompted.append(make_own(view, offset, (), FROM_PROMPT))
    candidates += prompted
    if not view.alignment.is_certain:
        for rank, (offset, features) in enumerate(_find_own_offsets(view, contexts).items()):
            candidates.append(make_own(view, offset, features, RECENCY[rank]))
    return _apply_rules(view, candidates)


def find_skipped(view: View, taken: set[int]) -> list[Candidate]:
    """Returns candidates after other tokens than the last, and the same before that.

    Args:
        view: What is looked at.
        taken: Offsets of the sources that are candidates already; found ones are added.
    """
    if view.num_context < MOST_ORDER:
        return []
    text, context = view.text, tuple(view.text[-MOST_ORDER:-1])
    found = []
    near = view.contexts.find(context).nearest(view.alignment.lost_at - 1, _MOST_SKIPPED)
    for before in near:
        offset = before + 1
        if offset >= view.start or offset in taken or min(text[before], text[offset]) < 0:
            continue
        if text[before] != text[-1]:
            taken.add(offset)
            found.append(make_skipped(view, offset))
    latest = view.output.find(context).latest(_MOST_AMBIGUOUS)
    own = [before + 1 for before in latest if before + 1 < len(text) and text[before] != text[-1]]
    for rank, offset in enumerate(own[: -_MOST_OWN_SKIPPED - 1 : -1]):
        found.append(make_skipped(view, offset, RECENCY[rank]))
    return found


def _find_offsets(view: View, contexts: Iterable[Context]) -> dict[int, Features]:
    """Returns offsets of the sources, the cursor first, each with features of its context."""
    alignment = view.alignment
    offsets: dict[int, Features] = {}
    if alignment.is_found and alignment.pending is None:
        offsets[alignment.offset] = ()
    if alignment.is_certain:
        return offsets
    for context in contexts:
        found, order = view.contexts.find(context), len(context)
        chosen = _choose(view, found, order)
        for offset, features in zip(chosen, _measure(view, found, chosen, order), strict=True):
            offsets[offset] = offsets.get(offset) or features
        if order == MOST_ORDER and _agrees_long(view, chosen):
            break
    return offsets


def _choose(view: View, offsets: Offsets, order: int) -> list[int]:
    near = view.alignment.lost_at
    most = (_MOST_PLACES if view.is_rewrite else _MOST_CONVERSATION_PLACES)[order - 1]
    if order == MOST_ORDER and len(offsets) > most:
        ambiguous = offsets.nearest(near, _MOST_AMBIGUOUS)
        if not view.is_rewrite:
            ambiguous = _merge(offsets.latest(_MOST_AMBIGUOUS), ambiguous)
        return choose_longest(view.text, ambiguous, view.num_context, near, most)
    if view.is_rewrite:
        return offsets.nearest(near, most)
    return _merge(offsets.latest(most - most // 2), offsets.nearest(near, most // 2))


def _merge(latest: Iterable[int], nearest: Iterable[int]) -> list[int]:
    return list(dict.fromkeys((*latest, *nearest)))


def _measure(view: View, found: Offsets, chosen: Sequence[int], order: int) -> list[Features]:
    """Returns features of offsets: how late they are, and how many others go on as they do.

    There are none of texts to be rewritten.
    """
    if view.is_rewrite:
        return [()] * len(chosen)
    latest = START["latest"] + (order - 1) * NUM_LATEST
    shares = _find_shares(view, found, chosen, order, "share")
    return [
        (latest + LATEST[min(found.rank(offset), MOST_RANK)], share)
        for offset, share in zip(chosen, shares, strict=True)
    ]


def _find_shares(
    view: View, found: Offsets, chosen: Iterable[int], order: int, block: str
) -> list[int]:
    """Returns for each offset the feature of how many of the latest ones go on as it does."""
    following = view.find_following(found.latest(MOST_COUNTED))
    total, end = len(following), len(view.text)
    first = START[block] + ((order - 1) * NUM_TOTALS + TOTAL[total]) * NUM_SHARES
    return [
        first + share_bucket(following.count(view.text[offset]) if offset < end else 0, total)
        for offset in chosen
    ]


def _find_own_offsets(view: View, contexts: Iterable[Context]) -> dict[int, Features]:
    """Returns offsets of the output, those after more equal tokens first, then the latest.

    Each with features of its context.
    """
    offsets: dict[int, Features] = {}
    for context in contexts:
        found, order = view.output.find(context), len(context)
        new = [
            offset
            for offset in _choose_own(view, found, order)
            if offset < len(view.text) and offset not in offsets
        ][: _MOST_OWN_PLACES[order - 1]]
        if view.is_rewrite:
            offsets.update((offset, ()) for offset in new)
        else:
            shares = _find_shares(view, found, new, order, "own_share")
            offsets.update((offset, (share,)) for offset, share in zip(new, shares, strict=True))
        if len(offsets) >= _ENOUGH_OWN_PLACES:
            break
        if order == MOST_ORDER and _agrees_long(view, offsets):
            break
    return offsets


def _choose_own(view: View, found: Offsets, order: int) -> list[int]:
    """Returns offsets of the output: the latest, or the longest to agree, first."""
    most, end = _MOST_OWN_PLACES[order - 1] + 1, len(view.text)
    offsets = found.latest(_MOST_AMBIGUOUS if order == MOST_ORDER else most)
    if len(offsets) <= most:
        return offsets[::-1]
    ambiguous = [offset for offset in offsets if offset < end]
    return choose_longest(view.text, ambiguous, view.num_context, end, most)


def _agrees_long(view: View, offsets: Iterable[int]) -> bool:
    """Returns whether as many tokens agree somewhere that few would be no evidence beside them."""
    return any(
        count_equal(view.text, offset, view.num_context) >= LONG_LENGTH for offset in offsets
    )


def _apply_rules(view: View, candidates: list[Candidate]) -> list[Candidate]:
    """Adds what rules put in place of the cursor's token."""
    alignment = view.alignment
    length = min(alignment.run, MOST_LENGTH)
    if alignment.pending is not None:
        rule, num_said, resume = alignment.pending
        return [make_ruled(view, rule, rule.offset + num_said, resume, length), *candidates]
    if not alignment.is_found or view.text[alignment.offset] < 0:
        return candidates
    for rule in alignment.rules.find(view.text, alignment.offset)[:1]:
        resume = alignment.offset + len(rule.replaced)
        candidates[0].features.append(START["rule_passed"] + rule.sightings)
        candidates.append(make_ruled(view, rule, rule.offset, resume, length))
    return candidates
