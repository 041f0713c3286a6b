"""Follows a prediction by the shortest edit script to it.

E. W. Myers, An O(ND) Difference Algorithm and Its Variations, 1986, made to stream. In the edit
graph of prediction (x) and output (y) a path that reaches the last output token on any diagonal
aligns the output with the beginning of the prediction; the output goes on where the shortest such
path ends. Output is searched only up to its end, so the search stops at the least number of edits
with which a path gets there. No path with fewer edits came so far, so none was held up by that
end: when the output grows, only the last frontier has to be extended, and what is found is what a
search of the whole output would find.
"""

from array import array

from optimist_aligner.algorithm import Follower
from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_proposer.core.line import START_EVIDENCE, copied


class MyersFollower(Follower):
    """Aligns the first prediction with the output by insertions and deletions.

    It keeps the furthest points of the paths with the least number of edits.

    Attributes:
        num_edits: Insertions and deletions of the shortest edit script.
        index: Index in the prediction where that script ends.
        run: Tokens in a row that agree before that index.
    """

    def __init__(self, sources: Sources) -> None:
        end = sources.token_ids.index(SEPARATOR) if sources.num_predicted else 0
        self._sources, self._predicted = sources, sources.token_ids[:end]
        self._output = array(INT32)
        # By diagonal x - y: how far in the prediction paths with `num_edits` edits come, and where
        # the matching tokens at their ends begin.
        self._furthest, self._starts = {0: 0}, {0: 0}
        self.num_edits = self.index = 0
        self.run = START_EVIDENCE

    def observe(self, token_ids: "array[int]") -> None:
        """See `Follower.observe`."""
        self._output.extend(token_ids)
        for diagonal in self._furthest:
            self._match(diagonal)
        while not (ends := self._ends()):
            self._edit()
        # Of several shortest scripts the one that the last tokens speak for, and then the furthest.
        self.run, self.index = max(ends)
        if not self.num_edits:
            self.run += START_EVIDENCE

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """See `Follower.propose`."""
        if self.index == len(self._predicted):
            return Draft()
        return copied(self._sources, self.index, self.run, max_tokens, min_value)

    def _match(self, diagonal: int) -> None:
        """Goes along a diagonal while prediction and output agree."""
        x = self._furthest[diagonal]
        end = min(len(self._predicted), len(self._output) + diagonal)
        while x < end and self._predicted[x] == self._output[x - diagonal]:
            x += 1
        self._furthest[diagonal] = x

    def _ends(self) -> list[tuple[int, int]]:
        """Returns run and index of each path that has all of the output."""
        num_known = len(self._output)
        return [
            (x - self._starts[diagonal], x)
            for diagonal, x in self._furthest.items()
            if x - diagonal == num_known
        ]

    def _edit(self) -> None:
        """Goes on with one edit more, a deletion from the prediction or an insertion."""
        self.num_edits += 1
        starts: dict[int, int] = {}
        for diagonal, x in self._furthest.items():
            if x < len(self._predicted):
                starts[diagonal + 1] = max(x + 1, starts.get(diagonal + 1, 0))
            starts[diagonal - 1] = max(x, starts.get(diagonal - 1, 0))
        self._starts, self._furthest = starts, starts.copy()
        for diagonal in starts:
            self._match(diagonal)
