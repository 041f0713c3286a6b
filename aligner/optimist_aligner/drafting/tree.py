"""The likeliest tree of drafts, grown from candidates node by node.

At every node the candidates that agree with the path compete for the next token, in proportion to
their weights, with a weight of 1 for none of them being right. The best tree of any size has the
nodes with the highest chances (as in OPT-Tree, arXiv 2406.17276), so nodes are taken best first.
"""

from math import exp, inf
from operator import attrgetter
from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, mypyc_attr

from optimist_aligner.drafting.branch import Branch, First, Path
from optimist_aligner.drafting.candidates import NO_STOP, Candidate, View
from optimist_aligner.drafting.draft import NO_PARENT, Draft, Nodes, make_draft
from optimist_aligner.drafting.further import MOST_OPEN_STEPS, find_further
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.layout import (
    MOST_LENGTH,
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
_NOTHING: Final = -1.0
"""Less than any value."""


@mypyc_attr(acyclic=True)
class TreeGrower:
    """Grows one tree."""

    def __init__(
        self,
        view: View,
        weights: Weights,
        positions: vec[i32],
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
        self._shared = weights.kind_logits[view.rate][view.runs][view.followed]
        self._next_terms = weights.next_terms[view.rate][view.runs]
        self._max_tokens, self._min_value, self._is_chain = max_tokens, min_value, is_chain
        self._least_open = inf if view.is_rewrite else LEAST_OPEN * min_value
        self._waiting: list[Branch] = []
        """The likeliest last, of equal ones the one that waits longest."""
        self._most_waiting = _NOTHING
        """Value of the last of them."""
        self._least_next = min_value
        """Value of the first node that comes next, or the least value of a node."""
        self._nodes = Nodes()

    def grow(self, candidates: list[Candidate], none_logit: float) -> Draft:
        """Returns the tree.

        Args:
            candidates: What may come first.
            none_logit: Logit of none of them being right.
        """
        firsts = self._add_up(candidates, none_logit)
        for number, first in enumerate(firsts):
            value = first.value
            self._grow_above(value)
            if len(self._nodes) >= self._max_tokens:
                break
            branch = self._sprout(first)
            following = firsts[number + 1].value if number + 1 < len(firsts) else 0.0
            self._least_next = max(following, self._min_value)
            self._take(branch, value, NO_PARENT, 0)
        self._grow_above(0.0)
        return make_draft(self._nodes)

    def _add_up(self, candidates: list[Candidate], none_logit: float) -> list[First]:
        """Weighs candidates; returns the tokens that are worth a node, the likeliest first."""
        shared = self._shared
        leads: list[Candidate] = []
        total = 1.0
        for candidate in candidates:
            logit = shared[candidate.kind] + candidate.logit - none_logit
            candidate.logit = logit
            odds = exp(logit if logit < _MOST_EXPONENT else _MOST_EXPONENT)
            total += odds
            # They are few, and to look a token up takes an object.
            token_id = candidate.token_id
            for lead in leads:
                if lead.token_id == token_id:
                    lead.odds += odds
                    break
            else:
                candidate.odds = odds
                leads.append(candidate)
        chosen: list[First] = []
        for lead in leads:
            value = lead.odds / total
            if value >= self._min_value:
                first, token_id = First(lead.token_id, lead.odds, value), lead.token_id
                for candidate in candidates:
                    if candidate.token_id == token_id and candidate.offset != NOWHERE:
                        first.seeds.append(candidate)
                chosen.append(first)
        chosen.sort(key=attrgetter("odds"), reverse=True)
        return chosen[:1] if self._is_chain else chosen

    def _grow_above(self, least: float) -> None:
        """Makes nodes of all that has been found after others and is worth that much."""
        waiting = self._waiting
        while waiting and self._most_waiting >= least and len(self._nodes) < self._max_tokens:
            branch = waiting.pop()
            self._most_waiting = waiting[-1].value if waiting else _NOTHING
            self._take(branch, branch.value, branch.parent, branch.step)

    def _sprout(self, first: First) -> Branch:
        """Makes paths of what a first node was found as."""
        branch, seeds = Branch(first.token_id, first.odds, NO_POSITION, []), first.seeds
        if len(seeds) > MOST_PATHS:
            seeds.sort(key=attrgetter("logit"), reverse=True)
            del seeds[MOST_PATHS:]
        for candidate in seeds:
            kind, offset = candidate.kind, candidate.offset
            factor = self._next_terms[kind].factor(candidate.logit)
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
        while True:
            self._nodes.append(branch.token_id, parent, branch.position, value)
            step += 1
            if not branch.paths:
                self._look_further(value, step)
                return
            if len(branch.paths) == 1:
                step, value = self._copy(branch, value, step)
            if step == MOST_STEPS or len(self._nodes) == self._max_tokens:
                return
            parent = len(self._nodes) - 1
            branches = self._continue(branch, step)
            if len(branches) != 1:
                if branches:
                    self._push_all(branches, value, parent, step)
                else:
                    self._look_further(value, step)
                return
            branch = branches[0]
            value *= branch.weight / (1.0 + branch.weight)
            if value < self._least_next or value < self._most_waiting:
                self._push(branch, value, parent, step)
                return

    def _look_further(self, value: float, step: int) -> None:
        """Finds what may come after the last node, where no path goes on."""
        if value < self._least_open or step > MOST_OPEN_STEPS:
            return
        token_ids, parents = self._nodes.token_ids, self._nodes.parents
        last, drafted = len(self._nodes) - 1, list[int]()
        node = last
        while node != NO_PARENT:
            drafted.append(token_ids[node])
            node = int(parents[node])
        factors = self._weights.continuations[OWN]
        branches: dict[int, Branch] = {}
        for candidate in find_further(self._view, drafted[::-1]):
            token_id, offset, logit = candidate.token_id, candidate.offset, candidate.logit
            branch = branches.setdefault(token_id, Branch(token_id, 0.0, NO_POSITION, []))
            branch.weight += exp(min(logit, _MOST_EXPONENT))
            if offset != NOWHERE and len(branch.paths) < MOST_PATHS:
                factor = self._next_terms[OWN].factor(logit)
                agreed = candidate.length - step
                branch.paths.append(Path(factor, factors, agreed, offset - step))
                branch.position = _prefer(branch.position, self._find_position(offset))
        self._push_all(list(branches.values()), value, last, step)

    def _copy(self, branch: Branch, value: float, step: int) -> tuple[int, float]:
        """Makes nodes of what comes after a branch of one path, as long as that is all plain.

        What `_continue` and `_take` do for one node at a time, for many; the branch is moved on.

        Returns:
            Number of nodes before the next, MOST_STEPS if this is all for now: something else is
            likelier than the next node. And the last one's value.
        """
        path, factors = branch.paths[0], branch.paths[0].factors
        factor, length, stop = path.factor, path.agreed, path.stop
        lengths, steps, pairs = factors.lengths, factors.steps, factors.classes
        ids, classes, positions = self._text.ids, self._classes, self._positions
        by_token, marks = self._rules.by_token, self._rules.marks
        nodes, node, num_positions = self._nodes, len(self._nodes) - 1, len(positions)
        least = max(self._least_next, self._most_waiting)
        first = offset = path.first + step
        end = min(min(self._max_tokens - 1 - node, MOST_STEPS - step) + offset, len(ids))
        row = classes[branch.token_id] * NUM_CLASSES
        is_less = False
        while offset < end:
            token_id = ids[offset]
            if token_id == SEPARATOR or offset == stop:
                break
            if marks[token_id & 0xFF] and token_id in by_token:
                break
            agreed, klass = length + step, classes[token_id]
            weight = (
                factor
                * lengths[agreed if agreed < MOST_LENGTH else MOST_LENGTH]
                * steps[step]
                * pairs[row + klass]
            )
            next_value = value * (weight / (1.0 + weight))
            if next_value < least:
                is_less = True
                break
            value = next_value
            position = positions[offset] if offset < num_positions else i32(NO_POSITION)
            nodes.append(token_id, node, position, value)
            row = klass * NUM_CLASSES
            node += 1
            step += 1
            offset += 1
        if offset > first:
            branch.token_id = ids[offset - 1]
        if is_less:
            branch.token_id, branch.weight = token_id, weight
            branch.position = self._find_position(offset)
            self._push(branch, next_value, node, step)
            return MOST_STEPS, value
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
        if value < self._min_value:
            return
        branch.value, branch.parent, branch.step = value, parent, step
        waiting = self._waiting
        low, high = 0, len(waiting)
        while low < high:
            middle = (low + high) // 2
            if waiting[middle].value < value:
                low = middle + 1
            else:
                high = middle
        waiting.insert(low, branch)
        self._most_waiting = max(self._most_waiting, value)

    def _continue(self, branch: Branch, step: int) -> list[Branch]:
        """Returns what may come after a branch, `step` nodes after the output."""
        ids, num_tokens, classes = self._text.ids, len(self._text), self._classes
        by_token, marks = self._rules.by_token, self._rules.marks
        branches: list[Branch] = []
        row = classes[branch.token_id] * NUM_CLASSES
        for path in branch.paths:
            offset = path.first + step
            if offset == path.stop:
                offset = path.resume
                path = Path(path.factor, path.factors, path.agreed, offset - step)
            token_id = ids[offset] if offset < num_tokens else SEPARATOR
            if token_id == SEPARATOR:
                continue
            factors, length = path.factors, path.agreed + step
            weight = (
                path.factor
                * factors.lengths[length if length < MOST_LENGTH else MOST_LENGTH]
                * factors.steps[step]
                * factors.classes[row + classes[token_id]]
            )
            if marks[token_id & 0xFF] and token_id in by_token and path.stop == NO_STOP:
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
        self._add(branches, self._text.ids[rule.offset], ruled, rule.offset, replaced)
        return weight * self._weights.next_rule_passed[rule.sightings]


def _prefer(position: int, other: int) -> int:
    """Returns a position in a prediction if there is one, else one in the prompt, else none."""
    return other if position == NO_POSITION or position < 0 <= other else position
