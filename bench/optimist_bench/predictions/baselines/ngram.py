"""Prompt lookup: goes on as the text did where the last tokens of the output stood first.

The longest n-gram counts, of 3 tokens, else 2, else 1, that ends the output and occurred before in
a prediction, in the prompt or in the output itself; of several such occurrences the first, in that
order. There is no cursor: every proposal looks again. An empty output is expected to begin as the
first prediction does.

Source: Saxena, Prompt Lookup Decoding, 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from array import array
from itertools import chain, compress

from optimist_aligner.algorithm import Follower
from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import INT32, NO_POSITION, SEPARATOR, Sources
from optimist_proposer.core.line import START_EVIDENCE, chained, copied

MAX_NGRAM = 3
# Longer agreement adds nothing to a draft of any usual width.
MAX_EVIDENCE = 64

Index = dict[tuple[int, ...], int]


class NgramFollower(Follower):
    """Knows the index after the first occurrence of each n-gram."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._output = array(INT32)
        self._index: Index = {}
        """Of the sources."""
        self._own_index: Index = {}
        """Of the output, as far as the sources do not have them."""
        token_ids = sources.token_ids[::-1]
        for length in range(1, MAX_NGRAM + 1):
            grams = zip(*(token_ids[skip:] for skip in reversed(range(length))), strict=False)
            # From the end to the beginning: of equal n-grams the first one stays.
            entries = zip(grams, range(len(token_ids), 0, -1), strict=False)
            # What is at the end of a text says nothing of what comes next.
            is_continued = chain([False], map(SEPARATOR.__ne__, token_ids))
            self._index.update(compress(entries, is_continued))

    def observe(self, token_ids: "array[int]") -> None:
        """See `Follower.observe`."""
        base = len(self._sources.token_ids)
        start = len(self._output)
        self._output.extend(token_ids)
        # An n-gram is known from when something follows it.
        for end in range(max(start, 1), len(self._output)):
            for length in range(1, min(MAX_NGRAM, end) + 1):
                gram = tuple(self._output[end - length : end])
                if gram not in self._index:
                    self._own_index.setdefault(gram, base + end)

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """See `Follower.propose`."""
        index, evidence = self._find()
        if evidence == 0:
            return Draft()
        start = index - len(self._sources.token_ids)
        if start < 0:
            return copied(self._sources, index, evidence, max_tokens, min_value)
        token_ids = self._output[start : start + max_tokens]
        positions = array(INT32, [NO_POSITION]) * len(token_ids)
        return chained(token_ids, positions, evidence, min_value)

    def _find(self) -> tuple[int, int]:
        """Returns the index to go on at and how many tokens match before it; 0 if there is none."""
        if not self._output:
            return 0, START_EVIDENCE if self._sources.num_predicted else 0
        for length in range(min(MAX_NGRAM, len(self._output)), 0, -1):
            gram = tuple(self._output[-length:])
            index = self._index.get(gram, -1)
            if index < 0:
                index = self._own_index.get(gram, -1)
            if index >= 0:
                return index, self._num_matching(index, length)
        return 0, 0

    def _num_matching(self, index: int, known: int) -> int:
        """Returns how many tokens before an index equal the end of the output; `known` do."""
        base = len(self._sources.token_ids)
        if index < base:
            text, end = self._sources.token_ids, index
        else:
            text, end = self._output, index - base
        limit = min(end, len(self._output), MAX_EVIDENCE)
        count = known
        while count < limit and text[end - 1 - count] == self._output[-1 - count]:
            count += 1
        return count
