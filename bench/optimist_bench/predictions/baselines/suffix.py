"""Suffix decoding: goes on as the text mostly did where the longest suffix of the output stood.

All suffixes of the output, of at most 64 tokens, that stood before in a prediction, in the prompt
or in the output itself are candidates. What followed their occurrences is a tree, in which a branch
is as likely as it was frequent. Of each, at most FACTOR nodes per matched token are proposed, the
likeliest first; the candidate counts whose nodes are expected to be accepted most, among equals the
longest. There is no cursor: every proposal looks again. An empty output is expected to begin as the
first prediction does.

Source: Oliaro et al., SuffixDecoding, 2024, arXiv:2411.04975; and its implementation in Arctic
Inference, from which are the factor, the longest match, and the choice by score. The value of a
node counts, beside the frequencies, the hazard law (see `optimist_proposer.core.chain`).
"""

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimist_aligner.algorithm import Algorithm, Follower, Reference
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import INT32, NO_POSITION, SEPARATOR, Sources
from optimist_proposer.core.chain import START_EVIDENCE, copied

Places = NDArray[np.int32]

MAX_PLACES = 256
"""Most places of a match: of more the last ones count."""


@dataclass(frozen=True, slots=True)
class Match:
    """A suffix of the output that stood elsewhere before."""

    length: int
    """The longest suffix that stands at all these places [tokens]."""
    places: Sequence[int]
    """Places in the text behind each occurrence, ascending."""


class SourceIndex:
    """The sources with the places of each token; does not change.

    Attributes:
        text: A separator, then the sources [num_places + 1].
        positions: Of each place of `text`, as `Sources.positions`.
    """

    def __init__(self, sources: Sources) -> None:
        self.text = array(INT32, [SEPARATOR]) + sources.token_ids
        self.positions = array(INT32, [NO_POSITION]) + sources.positions
        # The token before each place behind which the text goes on.
        before = np.array(self.text[:-1], dtype=np.int32)
        after = np.array(self.text[1:], dtype=np.int32)
        places = np.flatnonzero((before != SEPARATOR) & (after != SEPARATOR)).astype(np.int32)
        order = np.argsort(before[places], kind="stable")
        self._places: Places = places[order] + np.int32(1)
        self._tokens: Places = before[places][order]

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 512 + 16 * len(self.text)

    def places_behind(self, token_id: int) -> Places:
        """Returns the places behind each occurrence of a token, ascending."""
        first, end = np.searchsorted(self._tokens, (token_id, token_id + 1))
        return self._places[first:end]


class GrowingText:
    """The sources and, behind them, the output so far.

    Attributes:
        token_ids: A separator, the sources, the output.
    """

    __slots__ = ("_output_start", "_own_places", "_sources", "token_ids")

    def __init__(self, sources: SourceIndex) -> None:
        self._sources = sources
        self.token_ids = sources.text[:]
        self._output_start = len(self.token_ids)
        self._own_places: dict[int, array[int]] = {}

    def extend(self, token_ids: "array[int]") -> None:
        """Appends output tokens."""
        first = len(self.token_ids)
        self.token_ids.extend(token_ids)
        for place in range(max(first, self._output_start + 1), len(self.token_ids)):
            before = self.token_ids[place - 1]
            self._own_places.setdefault(before, array(INT32)).append(place)

    @property
    def num_output(self) -> int:
        """Number of output tokens."""
        return len(self.token_ids) - self._output_start

    def position(self, place: int) -> int:
        """Returns the position of a place, see `Sources.positions`."""
        if place >= self._output_start:
            return NO_POSITION
        return self._sources.positions[place]

    def matches(self, max_length: int) -> list[Match]:
        """Returns where the end of the output stood before, the longest suffix last.

        One match for each set of places; the suffixes that have the same set are in one match.

        Args:
            max_length: Longest suffix [tokens].
        """
        if self.num_output == 0:
            return []
        places = self._places_behind_last()
        found: list[Match] = []
        length = 1
        while len(places):
            longer = places[:0]
            if length < min(max_length, self.num_output):
                longer = self._kept(places, length + 1)
            if len(longer) < len(places):
                found.append(Match(length, [int(place) for place in places[-MAX_PLACES:]]))
            places = longer
            length += 1
        return found

    def _places_behind_last(self) -> Sequence[int] | Places:
        last = self.token_ids[-1]
        own = self._own_places.get(last, ())
        places = self._sources.places_behind(last)
        if len(places) + len(own) <= MAX_PLACES:
            return [*places.tolist(), *own]
        return np.concatenate((places, np.array(own, dtype=np.int32)))

    def _kept(self, places: Sequence[int] | Places, length: int) -> Sequence[int] | Places:
        """Returns the places before which the last `length` tokens stand; one fewer do."""
        token_ids = self.token_ids
        wanted = token_ids[-length]
        if isinstance(places, np.ndarray) and len(places) > MAX_PLACES:
            view = np.frombuffer(token_ids, dtype=np.int32)
            kept: Places = places[view[places - length] == wanted]
            return kept
        return [int(place) for place in places if token_ids[place - length] == wanted]


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


FACTOR = 4
"""Most nodes proposed per matched token."""
MAX_MATCH = 64
"""Longest suffix that is looked for [tokens]."""


class SuffixAlgorithm(Algorithm):
    """Looks up the longest suffix in all that is known."""

    def __init__(self, *, is_chain: bool = False) -> None:
        """Proposes trees; with `is_chain` the likeliest path alone."""
        self._is_chain = is_chain

    def prepare(self, sources: Sources) -> "SuffixReference":
        """See `Algorithm.prepare`."""
        return SuffixReference(sources, is_chain=self._is_chain)


class SuffixReference(Reference):
    """The sources and the places of their tokens."""

    def __init__(self, sources: Sources, *, is_chain: bool) -> None:
        self.sources = sources
        self.index = SourceIndex(sources)
        self.is_chain = is_chain

    @property
    def num_bytes(self) -> int:
        """See `Reference.num_bytes`."""
        return 512 + 8 * len(self.sources.token_ids) + self.index.num_bytes

    def follow(self) -> "SuffixFollower":
        """See `Reference.follow`."""
        return SuffixFollower(self)


class SuffixFollower(Follower):
    """Knows the output and the places of its tokens."""

    __slots__ = ("_is_chain", "_sources", "_text")

    def __init__(self, reference: SuffixReference) -> None:
        self._sources = reference.sources
        self._text = GrowingText(reference.index)
        self._is_chain = reference.is_chain

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
