"""Follows a prediction until the first difference, and is silent from there on.

Of several predictions the first counts that the output has not left yet.
"""

from array import array

from optimist_aligner.algorithm import Follower
from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import SEPARATOR, Sources
from optimist_proposer.core.line import START_EVIDENCE, copied


class ExactFollower(Follower):
    """Knows how long the output is and which predictions it has not left."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._num_known = sources, 0
        predicted = sources.token_ids[: sources.num_predicted]
        ends = [index for index, token in enumerate(predicted) if token == SEPARATOR]
        self._starts = [0, *(end + 1 for end in ends[:-1])] if ends else []

    def observe(self, token_ids: "array[int]") -> None:
        """See `Follower.observe`."""
        indices = [start + self._num_known for start in self._starts]
        predicted = self._sources.token_ids
        # What is left stays out: a separator equals no token, so no copy runs across one.
        self._starts = [
            start
            for start, index in zip(self._starts, indices, strict=True)
            if predicted[index : index + len(token_ids)] == token_ids
        ]
        self._num_known += len(token_ids)

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """See `Follower.propose`."""
        if not self._starts:
            return Draft()
        index = self._starts[0] + self._num_known
        evidence = START_EVIDENCE + self._num_known
        return copied(self._sources, index, evidence, max_tokens, min_value)
