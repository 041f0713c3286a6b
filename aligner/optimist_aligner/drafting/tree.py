"""The likeliest tree of drafts, grown from candidates node by node.

At every node the candidates that agree with the path compete for the next token, in proportion to
their weights, with a weight of 1 for none of them being right. The best tree of any size has the
nodes with the highest chances (as in OPT-Tree, arXiv 2406.17276), so nodes are taken best first.
"""

from array import array
from heapq import heappop, heappush, nlargest
from math import exp, inf
from operator import attrgetter, itemgetter
from typing import Final

from optimist_aligner.drafting.branch import Branch, First, Path, Seed
from optimist_aligner.drafting.candidates import NO_STOP, View
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.drafting.further import MOST_OPEN_STEPS, find_further
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.layout import (
    MOST_LENGTH,
    MOST_LOGIT,
    MOST_STEPS,
    NUM_CLASSES,
    OWN,
    PREDICTED,
)
from optimist_aligner.model.weights import Weights
from optimist_aligner.text.sources import NO_POSITION, SEPARATOR

_MOST_EXPONENT: Final = 30.0
LEAST_OPEN: Final = 4.0
"""Nodes are extended that are worth so many times the least value."""
MOST_PATHS: Final = 3
"""Candidates of one first token that are followed further."""


class TreeGrower:
    """Grows one tree."""

    def __init__(
        self,
        view: View,
        weights: Weights,
        positions: "array[int]",
        max_tokens: int,
        min_value: float,
        is_chain: bool,
    ) -> None:
        """Takes what candidates were found in, and the bounds of the tree (`Follower.propose`).

        A chain is one path of a tree, in which nothing competes for the room.
        """
        alignment, self._view = view.alignment, view
        self._text, self._classes = view.text, view.classes
        self._num_aligned, self._rules = view.num_aligned, alignment.rules
        self._cursor = NOWHERE
        if alignment.pending is None and alignment.is_found:
            self._cursor = alignment.offset
        self._weights, self._positions = weights, positions
        self._next_terms = weights.next_terms[view.rate][view.runs]
        self._max_tokens, self._min_value, self._is_chain = max_tokens, min_value, is_chain
        self._least_open = inf if view.is_rewrite else LEAST_OPEN * min_value
        self._heap: list[tuple[float, int, int, Branch, int]] = []
        self._num_pushed = 0
        self._least_next = min_value
        """Value of the first node that comes next, or the least value of a node."""
        self._nodes: list[tuple[int, int, int, float]] = []
        """Rows of the columns of a draft."""

    def grow(self, seeds: list[Seed], none_logit: float) -> Draft:
        """Returns the tree.

        Args:
            seeds: What may come first, with logits.
            none_logit: Logit of none of them being right.
        """
        firsts = _add_up(seeds, none_logit)
        if self._is_chain:
            del firsts[1:]
        for number, first in enumerate(firsts):
            value = first.value
            if value < self._min_value:
                break
            self._grow_above(value)
            if len(self._nodes) >= self._max_tokens:
                break
            branch = self._sprout(first)
            following = firsts[number + 1].value if number + 1 < len(firsts) else 0.0
            self._least_next = max(following, self._min_value)
            self._take(branch, value, NO_PARENT, 0)
        self._grow_above(0.0)
        return Draft.from_nodes(self._nodes)

    def _grow_above(self, least: float) -> None:
        """Makes nodes of all that has been found after others and is worth that much."""
        nodes, heap, max_tokens = self._nodes, self._heap, self._max_tokens
        while heap and -heap[0][0] >= least and len(nodes) < max_tokens:
            value, _, parent, branch, step = heappop(heap)
            self._take(branch, -value, parent, step)

    def _sprout(self, first: First) -> Branch:
        """Makes paths of what a first node was found as."""
        branch, seeds = Branch(first.token_id, first.odds, NO_POSITION, []), first.seeds
        if len(seeds) > MOST_PATHS:
            seeds = nlargest(MOST_PATHS, seeds, key=itemgetter(1))
        for candidate, logit in seeds:
            kind, offset = candidate.kind, candidate.offset
            slope, of_rate, of_runs = self._next_terms[kind]
            if logit > MOST_LOGIT:
                logit = MOST_LOGIT
            factor = exp(slope * logit + of_rate + of_runs)
            factors = self._weights.continuations[kind]
            if offset == self._cursor:
                factors = self._weights.cursor
            agreed = candidate.length if kind in (PREDICTED, OWN) else 0
            path = Path(factor, factors, agreed, offset, candidate.stop, candidate.resume)
            branch.paths.append(path)
            branch.position = _prefer(branch.position, self._find_position(offset))
        return branch

    def _take(self, branch: Branch, value: float, parent: int, step: int) -> None:
        """Makes a node of a branch, and of what comes after it as long as that is likeliest."""
        nodes, heap = self._nodes, self._heap
        while True:
            nodes.append((branch.token_id, parent, branch.position, value))
            step += 1
            if not branch.paths:
                self._look_further(value, step)
                return
            if len(branch.paths) == 1:
                step, value = self._copy(branch, value, step)
            if step == MOST_STEPS or len(nodes) == self._max_tokens:
                return
            parent = len(nodes) - 1
            branches = self._continue(branch, step)
            if len(branches) != 1:
                if branches:
                    self._push_all(branches, value, parent, step)
                else:
                    self._look_further(value, step)
                return
            branch = branches[0]
            value *= branch.weight / (1.0 + branch.weight)
            if value < self._least_next or (heap and value < -heap[0][0]):
                self._push(branch, value, parent, step)
                return

    def _look_further(self, value: float, step: int) -> None:
        """Finds what may come after the last node, where no path goes on."""
        if value < self._least_open or step > MOST_OPEN_STEPS:
            return
        nodes, drafted = self._nodes, list[int]()
        node = len(nodes) - 1
        while node != NO_PARENT:
            token_id, node, _, _ = nodes[node]
            drafted.append(token_id)
        slope, of_rate, of_runs = self._next_terms[OWN]
        weights, factors = self._weights, self._weights.continuations[OWN]
        branches: dict[int, Branch] = {}
        for candidate in find_further(self._view, drafted[::-1]):
            token_id, offset = candidate.token_id, candidate.offset
            logit = weights.weigh(candidate.features)
            branch = branches.setdefault(token_id, Branch(token_id, 0.0, NO_POSITION, []))
            branch.weight += exp(min(logit, _MOST_EXPONENT))
            if offset != NOWHERE and len(branch.paths) < MOST_PATHS:
                factor = exp(slope * min(logit, MOST_LOGIT) + of_rate + of_runs)
                agreed = candidate.length - step
                branch.paths.append(Path(factor, factors, agreed, offset - step))
                branch.position = _prefer(branch.position, self._find_position(offset))
        self._push_all(list(branches.values()), value, len(nodes) - 1, step)

    def _copy(self, branch: Branch, value: float, step: int) -> tuple[int, float]:
        """Makes nodes of what comes after a branch of one path, as long as that is all plain.

        What `_continue` and `_take` do for one node at a time, for many; the branch is moved on.

        Returns:
            Number of nodes before the next, MOST_STEPS if this is all for now: something else is
            likelier than the next node. And the last one's value.
        """
        path = branch.paths[0]
        factor, length, first, stop = path.factor, path.agreed, path.first, path.stop
        _, lengths, steps, pairs = path.factors
        nodes, classes, by_token = self._nodes, self._classes, self._rules.by_token
        least = self._least_next
        if self._heap and least < -self._heap[0][0]:
            least = -self._heap[0][0]
        num_positions, positions = len(self._positions), self._positions
        text, offset, node = self._text, first + step, len(nodes) - 1
        end = min(offset + self._max_tokens - 1 - node, first + MOST_STEPS, len(text))
        row = classes[branch.token_id] * NUM_CLASSES
        while offset < end:
            token_id = text[offset]
            if token_id in by_token:
                return step, value
            if offset == stop or token_id == SEPARATOR:
                break
            agreed = length + step
            klass = classes[token_id]
            weight = (
                factor
                * lengths[agreed if agreed < MOST_LENGTH else MOST_LENGTH]
                * steps[step]
                * pairs[row + klass]
            )
            next_value = value * (weight / (1.0 + weight))
            position = positions[offset] if offset < num_positions else NO_POSITION
            if next_value < least:
                branch.token_id, branch.weight, branch.position = token_id, weight, position
                self._push(branch, next_value, node, step)
                return MOST_STEPS, value
            value = next_value
            nodes.append((token_id, node, position, value))
            branch.token_id, row = token_id, klass * NUM_CLASSES
            node += 1
            step += 1
            offset += 1
        return step, value

    def _push_all(self, branches: list[Branch], value: float, parent: int, step: int) -> None:
        total = 0.0
        for branch in branches:
            total += branch.weight
        share = value / (1.0 + total)
        if self._is_chain and branches:
            branches = [max(branches, key=attrgetter("weight"))]
        for branch in branches:
            self._push(branch, branch.weight * share, parent, step)

    def _push(self, branch: Branch, value: float, parent: int, step: int) -> None:
        """Keeps a branch for later, if it is worth it."""
        if value >= self._min_value:
            self._num_pushed += 1
            heappush(self._heap, (-value, self._num_pushed, parent, branch, step))

    def _continue(self, branch: Branch, step: int) -> list[Branch]:
        """Returns what may come after a branch, `step` nodes after the output."""
        text, num_tokens, classes = self._text, len(self._text), self._classes
        by_token = self._rules.by_token
        branches: list[Branch] = []
        row = classes[branch.token_id] * NUM_CLASSES
        for path in branch.paths:
            offset = path.first + step
            if offset == path.stop:
                offset = path.resume
                path = Path(path.factor, path.factors, path.agreed, offset - step)
            token_id = text[offset] if offset < num_tokens else SEPARATOR
            if token_id == SEPARATOR:
                continue
            _, lengths, steps, pairs = path.factors
            length = path.agreed + step
            weight = (
                path.factor
                * lengths[length if length < MOST_LENGTH else MOST_LENGTH]
                * steps[step]
                * pairs[row + classes[token_id]]
            )
            if token_id in by_token and path.stop == NO_STOP:
                weight = self._replace(branches, path, offset, step, weight)
            self._add(branches, token_id, weight, offset, path)
        return branches

    def _add(
        self, branches: list[Branch], token_id: int, weight: float, offset: int, path: Path
    ) -> None:
        position = self._find_position(offset)
        for branch in branches:
            if branch.token_id == token_id:
                branch.weight += weight
                branch.paths.append(path)
                branch.position = _prefer(branch.position, position)
                return
        branches.append(Branch(token_id, weight, position, [path]))

    def _find_position(self, offset: int) -> int:
        return self._positions[offset] if offset < len(self._positions) else NO_POSITION

    def _replace(
        self, branches: list[Branch], path: Path, offset: int, step: int, weight: float
    ) -> float:
        """Adds what a rule puts there; returns the weight of what stands there."""
        if offset >= self._num_aligned:
            return weight
        rules = self._rules.find(self._text, offset)
        if not rules:
            return weight
        rule = rules[0]
        factors = self._weights.continuations[path.factors.kind]
        stop, resume = rule.offset + rule.length, offset + len(rule.replaced)
        replaced = Path(path.factor, factors, path.agreed, rule.offset - step, stop, resume)
        ruled = weight * self._weights.next_rule[rule.sightings]
        self._add(branches, self._text[rule.offset], ruled, rule.offset, replaced)
        return weight * self._weights.next_rule_passed[rule.sightings]


def _add_up(seeds: list[Seed], none_logit: float) -> list[First]:
    """Returns the tokens of candidates with their chances, the likeliest first."""
    firsts: dict[int, First] = {}
    total = 1.0
    for candidate, logit in seeds:
        logit -= none_logit
        weight = exp(logit if logit < _MOST_EXPONENT else _MOST_EXPONENT)
        total += weight
        first = firsts.get(candidate.token_id)
        if first is None:
            first = firsts[candidate.token_id] = First(candidate.token_id, weight)
        else:
            first.odds += weight
        if candidate.offset != NOWHERE:
            first.seeds.append((candidate, logit))
    ordered = sorted(firsts.values(), key=attrgetter("odds"), reverse=True)
    for first in ordered:
        first.value = first.odds / total
    return ordered


def _prefer(position: int, other: int) -> int:
    """Returns a position in a prediction if there is one, else one in the prompt, else none."""
    return other if position == NO_POSITION or position < 0 <= other else position
