"""A suffix automaton: all substrings of a sequence that grows, found in one step per token.

Blumer et al., The smallest automaton recognizing the subwords of a text, 1985.
"""

from array import array
from collections.abc import Iterable

ROOT = 0


class SuffixAutomaton:
    """Knows every substring of the tokens added so far; amortised constant time a token.

    Attributes:
        transitions: State behind each token, for each state.
        links: State of the longest proper suffix that is in another state, for each state.
        lengths: Number of tokens of the longest substring of each state.
    """

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.transitions: list[dict[int, int]] = [{}]
        self.links = array("i", [-1])
        self.lengths = array("i", [0])
        self._last = ROOT
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Appends a token."""
        transitions, links = self.transitions, self.links
        state, origin = len(transitions), self._last
        transitions.append({})
        self.lengths.append(self.lengths[origin] + 1)
        links.append(ROOT)
        self._last = state
        while origin >= 0 and token_id not in transitions[origin]:
            transitions[origin][token_id] = state
            origin = links[origin]
        if origin < 0:
            return
        target = transitions[origin][token_id]
        if self.lengths[target] == self.lengths[origin] + 1:
            links[state] = target
            return
        links[state] = self._split(origin, token_id, target)

    def _split(self, origin: int, token_id: int, target: int) -> int:
        """Gives the substrings of `target` that end as `origin` does a state of their own."""
        clone = len(self.transitions)
        self.transitions.append(dict(self.transitions[target]))
        self.lengths.append(self.lengths[origin] + 1)
        self.links.append(self.links[target])
        self.links[target] = clone
        while origin >= 0 and self.transitions[origin].get(token_id) == target:
            self.transitions[origin][token_id] = clone
            origin = self.links[origin]
        return clone
