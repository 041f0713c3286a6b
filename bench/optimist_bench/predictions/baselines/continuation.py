"""What followed the occurrences of a suffix, as a tree: a branch for each token that did."""

import heapq
from array import array
from dataclasses import dataclass

from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import SEPARATOR
from optimist_bench.predictions.baselines.occurrence import GrowingText, Match


@dataclass(slots=True)
class _Branch:
    """A node that may be proposed next."""

    parent: int
    depth: int
    share: float
    """How many of the occurrences went on with all tokens up to this one."""
    places: list[int]
    """Where its token stands, ascending."""


def continuation(
    text: GrowingText, match: Match, max_tokens: int, min_value: float, *, is_chain: bool
) -> Draft:
    """Returns the likeliest nodes of the tree behind a match; of a chain, those of one path.

    The value of a node is how often it followed, times e/(e + n) for the n-th token behind a match
    of e tokens (the hazard law). Nodes of equal value come in the order of the text.
    """
    draft = Draft()
    heap: list[tuple[float, int, _Branch]] = []
    num_pushed = 0
    waiting = _branches(text.token_ids, NO_PARENT, 1, 1.0, list(match.places))
    while len(draft) < max_tokens:
        if is_chain and waiting:
            waiting = [max(waiting, key=lambda branch: branch.share)]
        for branch in waiting:
            value = branch.share * match.length / (match.length + branch.depth)
            heapq.heappush(heap, (-value, num_pushed, branch))
            num_pushed += 1
        if not heap:
            break
        negative_value, _, branch = heapq.heappop(heap)
        draft.values.append(-negative_value)
        # Rounded to what is sent, which must not be less than wanted.
        if draft.values[-1] < min_value:
            draft.values.pop()
            break
        draft.token_ids.append(text.token_ids[branch.places[0]])
        draft.parents.append(branch.parent)
        draft.positions.append(text.position(branch.places[0]))
        behind = [place + 1 for place in branch.places]
        waiting = _branches(text.token_ids, len(draft) - 1, branch.depth + 1, branch.share, behind)
    return draft


def _branches(
    token_ids: "array[int]", parent: int, depth: int, share: float, places: list[int]
) -> list[_Branch]:
    """Returns a branch for each token that stands at the places."""
    groups: dict[int, list[int]] = {}
    for place in places:
        if place < len(token_ids) and token_ids[place] != SEPARATOR:
            groups.setdefault(token_ids[place], []).append(place)
    return [
        _Branch(parent, depth, share * len(group) / len(places), group) for group in groups.values()
    ]
