"""The oracle: what a proposer would reach that knows the answer, but may only copy.

A proposal of the span oracle is one contiguous span of the prediction, of at most `window` tokens;
of the second oracle, a span of the prediction or of the output so far. A pass emits what was
accepted of it and one token more. At output position i both take the span that agrees with the
output longest. That is optimal: without its first d tokens a span is a span too, so the position
reached is a nondecreasing function of the position started from, and any other choice stays behind.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from optimist_bench.predictions.automaton import ROOT, SuffixAutomaton

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
