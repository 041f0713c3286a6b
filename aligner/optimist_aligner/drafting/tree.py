"""The likeliest tree of drafts, grown from candidates node by node.

At every node the candidates that agree with the path compete for the next token, in proportion to
their weights, with a weight of 1 for none of them being right. The best tree of any size has the
nodes with the highest chances (as in OPT-Tree, arXiv 2406.17276), so nodes are taken best first.
"""

from bisect import insort_left
from collections.abc import Sequence
from math import exp, inf
from operator import attrgetter, itemgetter
from typing import Final

from optimist_aligner.drafting.branch import Branch, Path
from optimist_aligner.drafting.candidates import NO_STOP, Candidate, View, kind_features
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.drafting.further import find_further
from optimist_aligner.following.rule import Rule
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
RETURN_LOGIT: Final = -2.5
"""For each time that the output came back to an offset and left it again."""
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
        positions: Sequence[int],
        max_tokens: int,
        min_value: float,
        is_chain: bool,
    ) -> None:
        """Takes what candidates were found in, and the bounds of the tree (`Follower.propose`).

        A chain is one path of a tree, in which nothing competes for the room.
        """
        alignment, self._view, self._text = view.alignment, view, view.text
        self._rules, self._classes = alignment.rules, view.classes
        self._cursor = NOWHERE
        if alignment.pending is None and alignment.is_found:
            self._cursor = alignment.offset
        self._weights, self._positions = weights, positions
        self._max_tokens, self._min_value, self._is_chain = max_tokens, min_value, is_chain
        self._least_open = inf if view.is_rewrite else LEAST_OPEN * min_value
        self._waiting: list[Branch] = []
        """The likeliest last, of equal ones the one that waits longest."""
        self._least_next = min_value
        """Value of the first node that comes next, or the least value of a node."""
        self._draft = Draft()

    def grow(self, candidates: list[Candidate], none_logit: float) -> Draft:
        """Returns the tree.

        Args:
            candidates: What may come first.
            none_logit: Logit of none of them being right.
        """
        firsts = self._add_up(candidates, none_logit)
        for number, branch in enumerate(firsts, 1):
            self._grow_above(branch.value)
            following = firsts[number].value if number < len(firsts) else 0.0
            self._least_next = max(following, self._min_value)
            if len(self._draft) < self._max_tokens:
                self._take(branch)
        self._grow_above(0.0)
        return self._draft

    def _add_up(self, candidates: list[Candidate], none_logit: float) -> list[Branch]:
        """Weighs candidates; returns the tokens that are worth a node, the likeliest first."""
        shared = [self._weights.weigh(features) for features in kind_features(self._view)]
        branches: dict[int, Branch] = {}
        weighed: dict[int, list[tuple[float, Candidate]]] = {}
        total = 1.0
        for each in candidates:
            logit = shared[each.kind] + self._weights.weigh(each.features) - none_logit
            logit += RETURN_LOGIT * self._count_returns(each.offset)
            odds = exp(min(logit, _MOST_EXPONENT))
            total += odds
            branches.setdefault(each.token_id, Branch(each.token_id)).weight += odds
            weighed.setdefault(each.token_id, []).append((logit, each))
        firsts = sorted(branches.values(), key=attrgetter("weight"), reverse=True)
        for branch in firsts:
            branch.value = branch.weight / total
        firsts = [branch for branch in firsts if branch.value >= self._min_value]
        if self._is_chain:
            del firsts[1:]
        for branch in firsts:
            self._sprout(branch, weighed[branch.token_id])
        return firsts

    def _sprout(self, branch: Branch, weighed: list[tuple[float, Candidate]]) -> None:
        """Makes paths of the candidates that a first token has, each with its logit."""
        seeds = [(logit, each) for logit, each in weighed if each.offset != NOWHERE]
        if len(seeds) > MOST_PATHS:
            seeds.sort(key=itemgetter(0), reverse=True)
        for logit, each in seeds[:MOST_PATHS]:
            factors = self._weights.continuations[each.kind]
            if each.offset == self._cursor:
                factors = self._weights.cursor
            agreed = each.length if each.kind in (PREDICTED, OWN) else 0
            factor = self._find_factor(each.kind, logit)
            path = Path(factor, factors, agreed, each.offset, each.stop, each.resume)
            branch.add(path, self._find_position(each.offset))

    def _find_factor(self, kind: int, logit: float) -> float:
        alignment = self._view.alignment
        return self._weights.find_factor(kind, alignment.rate, alignment.runs, logit)

    def _find_position(self, offset: int) -> int:
        return self._positions[offset] if offset < len(self._positions) else NO_POSITION

    def _grow_above(self, least: float) -> None:
        """Makes nodes of all that has been found after others and is worth that much."""
        while self._most_waiting >= least and len(self._draft) < self._max_tokens:
            self._take(self._waiting.pop())

    @property
    def _most_waiting(self) -> float:
        """The highest value of what waits; less than any if nothing does."""
        return self._waiting[-1].value if self._waiting else -1.0

    def _take(self, branch: Branch) -> None:
        """Makes a node of a branch, and of what comes after it as long as that is likeliest."""
        draft = self._draft
        while True:
            draft.token_ids.append(branch.token_id)
            draft.parents.append(branch.parent)
            draft.positions.append(branch.position)
            draft.values.append(branch.value)
            if branch.step + 1 == MOST_STEPS or len(draft) == self._max_tokens:
                return
            branches = self._continue(branch)
            if len(branches) != 1:
                self._push_all(branches or self._find_further(branch), branch)
                return
            (following,) = branches
            chance = following.weight / (1.0 + following.weight)
            self._place(following, branch, branch.value * chance)
            branch = following
            if branch.value < max(self._least_next, self._most_waiting):
                self._push(branch)
                return

    def _place(self, branch: Branch, before: Branch, value: float) -> None:
        """Notes a branch's chance, and that it comes after the last node, made of `before`."""
        branch.value, branch.parent, branch.step = value, len(self._draft) - 1, before.step + 1

    def _push_all(self, branches: list[Branch], before: Branch) -> None:
        total = 0.0
        for branch in branches:
            total += branch.weight
        share = before.value / (1.0 + total)
        if self._is_chain and branches:
            branches = [max(branches, key=attrgetter("weight"))]
        for branch in branches:
            self._place(branch, before, branch.weight * share)
            self._push(branch)

    def _push(self, branch: Branch) -> None:
        """Keeps a branch for later, if it is worth it."""
        if branch.value >= self._min_value:
            insort_left(self._waiting, branch, key=attrgetter("value"))

    def _continue(self, branch: Branch) -> list[Branch]:
        """Returns what may come after a branch."""
        text, step = self._text, branch.step + 1
        branches: dict[int, Branch] = {}
        row = self._classes.find(branch.token_id) * NUM_CLASSES
        for path in branch.paths:
            offset = path.first + step
            if offset == path.stop:
                offset = path.resume
                path = Path(path.factor, path.factors, path.agreed, offset - step)
            token_id = text[offset] if offset < len(text) else SEPARATOR
            if token_id == SEPARATOR:
                continue
            factors = path.factors
            weight = (
                path.factor
                * factors.lengths[min(path.agreed + step, MOST_LENGTH)]
                * factors.steps[step]
                * factors.classes[row + self._classes.find(token_id)]
            )
            num_returns = self._count_returns(offset)
            if num_returns:
                weight *= exp(RETURN_LOGIT * num_returns)
            if path.stop == NO_STOP and offset < self._view.num_aligned:
                for rule in self._rules.find(text, offset)[:1]:
                    ruled = weight * self._weights.next_rule[rule.sightings]
                    self._add(branches, ruled, rule.offset, self._replace(path, rule, offset, step))
                    weight *= self._weights.next_rule_passed[rule.sightings]
            self._add(branches, weight, offset, path)
        return list(branches.values())

    def _count_returns(self, offset: int) -> int:
        return self._view.alignment.count_returns(offset)

    def _replace(self, path: Path, rule: Rule, offset: int, step: int) -> Path:
        """Returns the path that goes on with what a rule puts at an offset."""
        factors = self._weights.continuations[path.factors.kind]
        stop, resume = rule.offset + rule.length, offset + len(rule.replaced)
        return Path(path.factor, factors, path.agreed, rule.offset - step, stop, resume)

    def _add(self, branches: dict[int, Branch], weight: float, offset: int, path: Path) -> None:
        token_id = self._text[offset]
        branch = branches.setdefault(token_id, Branch(token_id))
        branch.weight += weight
        branch.add(path, self._find_position(offset))

    def _find_further(self, branch: Branch) -> list[Branch]:
        """Returns what may come after a branch, which is the last node, if no path goes on."""
        if branch.value < self._least_open:
            return []
        drafted, node, step = list[int](), len(self._draft) - 1, branch.step + 1
        while node != NO_PARENT:
            drafted.append(self._draft.token_ids[node])
            node = self._draft.parents[node]
        factors = self._weights.continuations[OWN]
        branches: dict[int, Branch] = {}
        for each in find_further(self._view, drafted[::-1]):
            logit = self._weights.weigh(each.features)
            found = branches.setdefault(each.token_id, Branch(each.token_id))
            found.weight += exp(min(logit, _MOST_EXPONENT))
            if each.offset != NOWHERE and len(found.paths) < MOST_PATHS:
                factor = self._find_factor(OWN, logit)
                path = Path(factor, factors, each.length - step, each.offset - step)
                found.add(path, self._find_position(each.offset))
        return list(branches.values())
