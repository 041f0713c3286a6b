"""Candidates after tokens that are only drafted, where a branch of the tree ends."""

from collections.abc import Sequence
from typing import Final

from librt.vecs import vec
from mypy_extensions import i32

from optimist_aligner.drafting.candidates import Candidate, View
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.layout import COMMON, NUM_SHARES, OWN, START, share_bucket
from optimist_aligner.text.context_index import MOST_ORDER, context_key

MOST_OPEN_STEPS: Final = 6
"""Nodes before the end of a branch that is still extended."""
_MOST_PLACES: Final = 8
_FURTHER: Final = START["further"]
_FROM_COMMON: Final = START["further_common"] - START["common"]


def find_further(view: View, drafted: Sequence[int]) -> list[Candidate]:
    """Returns candidates after tokens that the output may say next.

    Args:
        view: What is looked at.
        drafted: These tokens.
    """
    tail = [*view.text.ids[-MOST_ORDER:], *drafted][-MOST_ORDER:]
    if view.is_rewrite or len(tail) < MOST_ORDER or len(drafted) > MOST_OPEN_STEPS:
        return []
    candidates: list[Candidate] = []
    for order in (3, 2):
        key = context_key(vec[i32](tail), order)
        found = view.contexts.find(order, key)
        if found is not None:
            candidates += _make(view, found.latest(_MOST_PLACES), order, is_own=False)
        own = view.output.find_latest(order, key, _MOST_PLACES)
        candidates += _make(view, own, order, is_own=True)
        if candidates:
            break
    if view.common is not None:
        for token_id, feature in view.common.find_further(tail[-2], tail[-1]):
            candidate = Candidate(token_id, COMMON, 0, NOWHERE)
            candidate.add(view, feature + _FROM_COMMON)
            candidates.append(candidate)
    return candidates


def _make(view: View, offsets: Sequence[int], order: int, *, is_own: bool) -> list[Candidate]:
    """Returns the latest offset of each token that stands at some offsets."""
    ids, end = view.text.ids, len(view.text)
    latest = {ids[offset]: offset for offset in offsets if offset < end and ids[offset] >= 0}
    following = [ids[offset] for offset in offsets if offset < end]
    first = _FURTHER + ((order - 2) * 2 + is_own) * NUM_SHARES
    candidates: list[Candidate] = []
    for token_id, offset in latest.items():
        candidate = Candidate(token_id, OWN, order, offset)
        candidate.add(view, first + share_bucket(following.count(token_id), len(following)))
        candidates.append(candidate)
    return candidates
