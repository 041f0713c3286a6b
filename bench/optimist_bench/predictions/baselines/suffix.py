"""Suffix decoding: goes on as the text mostly did where the longest suffix of the output stood.

All suffixes of the output, of at most 64 tokens, that stood before in a prediction, in the prompt
or in the output itself are candidates. What followed their occurrences is a tree, in which a branch
is as likely as it was frequent. Of each, at most FACTOR nodes per matched token are proposed, the
likeliest first; the candidate counts whose nodes are expected to be accepted most, among equals the
longest. There is no cursor: every proposal looks again. An empty output is expected to begin as the
first prediction does.

Source: Oliaro et al., SuffixDecoding, 2024, arXiv:2411.04975; and its implementation in Arctic
Inference, from which are the factor, the longest match, and the choice by score. The value of a
node counts, beside the frequencies, the hazard law (see `optimist_proposer.core.line`).
"""

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimist_aligner.algorithm import Follower
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import INT32, NO_POSITION, SEPARATOR, Sources
from optimist_proposer.core.line import START_EVIDENCE, copied

Indices = Sequence[int] | NDArray[np.int32]

MAX_OCCURRENCES = 256
"""Most occurrences of a match: of more the last ones count."""


@dataclass(frozen=True, slots=True)
class Match:
    """A suffix of the output that stood elsewhere before."""

    length: int
    """The longest suffix that ends at all these indices [tokens]."""
    indices: Sequence[int]
    """Indices in the text after each occurrence, ascending."""


class GrowingText:
    """The sources and, after them, the output so far.

    Attributes:
        token_ids: A separator, the sources, the output.
    """

    def __init__(self, sources: Sources) -> None:
        self.token_ids = array(INT32, [SEPARATOR])
        self._positions = array(INT32, [NO_POSITION]) + sources.positions
        self._indices: dict[int, array[int]] = {}
        """After each occurrence of a token after which the text goes on, ascending."""
        self.extend(sources.token_ids)
        self._output_start = len(self.token_ids)

    def extend(self, token_ids: "array[int]") -> None:
        """Appends tokens."""
        first = len(self.token_ids)
        self.token_ids.extend(token_ids)
        for index in range(first, len(self.token_ids)):
            before = self.token_ids[index - 1]
            if SEPARATOR not in (before, self.token_ids[index]):
                self._indices.setdefault(before, array(INT32)).append(index)

    @property
    def num_output(self) -> int:
        """Number of output tokens."""
        return len(self.token_ids) - self._output_start

    def position(self, index: int) -> int:
        """Returns the position of an index, see `Sources.positions`."""
        return self._positions[index] if index < self._output_start else NO_POSITION

    def matches(self, max_length: int) -> list[Match]:
        """Returns where the end of the output stood before, the longest suffix last.

        One match for each set of indices; the suffixes that have the same set are in one match.

        Args:
            max_length: Longest suffix [tokens].
        """
        if self.num_output == 0:
            return []
        found: list[Match] = []
        indices: Indices = self._indices.get(self.token_ids[-1], array(INT32))
        length = 1
        while len(indices):
            longer = indices[:0]
            if length < min(max_length, self.num_output):
                longer = self._keep(indices, length + 1)
            if len(longer) < len(indices):
                found.append(Match(length, [int(index) for index in indices[-MAX_OCCURRENCES:]]))
            indices = longer
            length += 1
        return found

    def _keep(self, indices: Indices, length: int) -> Indices:
        """Returns the indices before which the last `length` tokens are; one fewer do."""
        token_ids = self.token_ids
        wanted = token_ids[-length]
        if len(indices) > MAX_OCCURRENCES:
            several = np.array(indices, np.int32)
            kept: Indices = several[np.frombuffer(token_ids, np.int32)[several - length] == wanted]
            return kept
        return [int(index) for index in indices if token_ids[index - length] == wanted]


@dataclass(slots=True)
class _Branch:
    """A node that may be proposed next."""

    parent: int
    depth: int
    share: float
    """How many of the occurrences went on with all tokens up to this one."""
    indices: list[int]
    """Where its token is, ascending."""


def continuation(
    text: GrowingText, match: Match, max_tokens: int, min_value: float, *, is_chain: bool
) -> Draft:
    """Returns the likeliest nodes of the tree after a match; of a chain, those of one path.

    The value of a node is how often it followed, times e/(e + n) for the n-th token after a match
    of e tokens (the hazard law). Nodes of equal value come in the order of the text.
    """
    draft = Draft()
    heap: list[tuple[float, int, _Branch]] = []
    num_pushed = 0
    waiting = _branches(text.token_ids, NO_PARENT, 1, 1.0, list(match.indices))
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
        draft.token_ids.append(text.token_ids[branch.indices[0]])
        draft.parents.append(branch.parent)
        draft.positions.append(text.position(branch.indices[0]))
        following = [index + 1 for index in branch.indices]
        waiting = _branches(
            text.token_ids, len(draft) - 1, branch.depth + 1, branch.share, following
        )
    return draft


def _branches(
    token_ids: "array[int]", parent: int, depth: int, share: float, indices: list[int]
) -> list[_Branch]:
    """Returns a branch for each token that is at the indices."""
    groups: dict[int, list[int]] = {}
    for index in indices:
        if index < len(token_ids) and token_ids[index] != SEPARATOR:
            groups.setdefault(token_ids[index], []).append(index)
    return [
        _Branch(parent, depth, share * len(group) / len(indices), group)
        for group in groups.values()
    ]


FACTOR = 4
"""Most nodes proposed per matched token."""
MAX_MATCH = 64
"""Longest suffix that is looked for [tokens]."""


class SuffixFollower(Follower):
    """Knows the output and the indices of all tokens."""

    def __init__(self, sources: Sources, *, is_chain: bool = False) -> None:
        """Proposes trees; with `is_chain` the likeliest path alone."""
        self._sources, self._is_chain = sources, is_chain
        self._text = GrowingText(sources)

    def observe(self, token_ids: "array[int]") -> None:
        """See `Follower.observe`."""
        self._text.extend(token_ids)

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """See `Follower.propose`."""
        if self._text.num_output == 0:
            evidence = START_EVIDENCE if self._sources.num_predicted else 0
            return copied(self._sources, 0, evidence, max_tokens, min_value)
        best, best_score = Draft(), 0.0
        for match in reversed(self._text.matches(MAX_MATCH)):
            limit = min(max_tokens, FACTOR * match.length)
            # No tree is worth more than a chain that is always right.
            if limit * match.length / (match.length + 1) <= best_score:
                break
            draft = continuation(self._text, match, limit, min_value, is_chain=self._is_chain)
            score = sum(draft.values)
            if score > best_score:
                best, best_score = draft, score
        return best
