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

from array import array

from optimist_aligner.algorithm import Algorithm, Follower, Reference
from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import Sources
from optimist_bench.predictions.baselines.continuation import continuation
from optimist_bench.predictions.baselines.occurrence import GrowingText, SourceIndex
from optimist_proposer.core.chain import START_EVIDENCE, copied

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
