"""Candidates after tokens that are only drafted, where a branch of the tree ends."""

from collections.abc import Sequence
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.layout import COMMON, NUM_SHARES, OWN, START, share_bucket
from optimist_aligner.text.context_index import MOST_ORDER

MOST_OPEN_STEPS: Final = 6
"""Nodes before the end of a branch that is still extended."""
_MOST_PLACES: Final = 8
_FROM_COMMON: Final = START["further_common"] - START["common"]


def find_further(view: View, drafted: Sequence[int]) -> list[Candidate]:
    """Returns candidates after tokens that the output may say next.

    Args:
        view: What is looked at.
        drafted: These tokens.
    """
    tail = (*view.text[-MOST_ORDER:], *drafted)[-MOST_ORDER:]
    if view.is_rewrite or len(tail) < MOST_ORDER or len(drafted) > MOST_OPEN_STEPS:
        return []
    candidates: list[Candidate] = []
    for order in (3, 2):
        for is_own, index in enumerate((view.contexts, view.output)):
            offsets = index.find(tail[-order:]).latest(_MOST_PLACES)
            first = START["further"] + ((order - 2) * 2 + is_own) * NUM_SHARES
            candidates += _make(view, offsets, order, first)
        if candidates:
            break
    if view.common is not None:
        for token_id, feature in view.common.find_further(tail[-2], tail[-1]):
            candidates.append(Candidate(token_id, COMMON, 0, NOWHERE, [feature + _FROM_COMMON]))
    return candidates


def _make(view: View, offsets: Sequence[int], order: int, first: int) -> list[Candidate]:
    """Returns the latest offset of each token that stands at some offsets.

    Args:
        view: What is looked at.
        offsets: After the same context.
        order: Tokens of this context.
        first: The feature of the least share of the offsets.
    """
    following = view.find_following(offsets)
    latest = dict(zip(following, offsets, strict=False))
    return [
        Candidate(
            token_id,
            OWN,
            order,
            offset,
            [first + share_bucket(following.count(token_id), len(following))],
        )
        for token_id, offset in latest.items()
        if token_id >= 0
    ]
