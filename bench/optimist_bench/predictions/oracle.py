"""The oracle: what a proposer would reach that knows the answer, but may only copy.

A proposal of the span oracle is one contiguous span of the prediction, of at most `window` tokens;
of the second oracle, a span of the prediction or of the output so far. A pass emits what was
accepted of it and one token more. At output position i both take the span that agrees with the
output longest. That is optimal: without its first d tokens a span is a span too, so the position
reached is a nondecreasing function of the position started from, and others reach no further.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROOT = 0


class SuffixAutomaton:
    """Knows every substring of the tokens added so far; amortised constant time a token.

    Blumer et al., The smallest automaton recognizing the subwords of a text, 1985.

    Attributes:
        transitions: State after each token, for each state.
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


_BOUNDARY = -1


@dataclass(frozen=True)
class Course:
    """The passes of an oracle."""

    num_passes: int
    num_accepted: int


def span_lengths(predicted: Sequence[int], truth: Sequence[int]) -> "array[int]":
    """Returns how far each suffix of `truth` agrees with a span of `predicted` [num_tokens]."""
    return _match(SuffixAutomaton(predicted), truth, growing=False)


def span_lengths_with_own(predicted: Sequence[int], truth: Sequence[int]) -> "array[int]":
    """Returns the same if the span may be of `truth` too, before that suffix [num_tokens]."""
    automaton = SuffixAutomaton(predicted)
    automaton.add(_BOUNDARY)
    return _match(automaton, truth, growing=True)


def _match(automaton: SuffixAutomaton, truth: Sequence[int], *, growing: bool) -> "array[int]":
    """Walks through `truth` with the longest match; adds it token by token if `growing`."""
    lengths = array("i")
    state, length, end = ROOT, 0, 0
    for position in range(len(truth)):
        if end < position:
            state, length, end = ROOT, 0, position
        while end < len(truth) and truth[end] in automaton.transitions[state]:
            state = automaton.transitions[state][truth[end]]
            end += 1
            length += 1
        lengths.append(length)
        if growing:
            automaton.add(truth[position])
        # The match goes on without its first token.
        length = max(length - 1, 0)
        while state != ROOT and automaton.lengths[automaton.links[state]] >= length:
            state = automaton.links[state]
    return lengths


def greedy_course(lengths: Sequence[int], window: int) -> Course:
    """Returns the fewest passes that emit all tokens.

    Args:
        lengths: Tokens that agree from each output position on [num_tokens].
        window: Most tokens of a proposal.
    """
    position = num_passes = num_accepted = 0
    while position < len(lengths):
        accepted = min(lengths[position], window)
        num_accepted += accepted
        num_passes += 1
        position += accepted + 1
    return Course(num_passes, num_accepted)
