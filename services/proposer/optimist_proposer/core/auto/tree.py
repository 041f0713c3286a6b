"""The likeliest tree of drafts, grown from candidates node by node.

At every node the candidates that agree with the path compete for the next token, in proportion to
their weights, with a weight of 1 for none of them being right. The best tree of any size has the
nodes with the highest chances (as in OPT-Tree, arXiv 2406.17276), so nodes are taken best first.
"""

from array import array
from heapq import heappop, heappush
from math import exp
from typing import NamedTuple

from optimist_proposer.core.auto.candidates import NO_STOP, Candidate, Sight
from optimist_proposer.core.auto.layout import (
    MOST_LENGTH,
    MOST_LOGIT,
    MOST_STEPS,
    NUM_CLASSES,
    OWN,
    PREDICTED,
    SOURCE,
)
from optimist_proposer.core.auto.template import NOWHERE
from optimist_proposer.core.auto.weights import Weights
from optimist_proposer.core.draft import NO_PARENT, Draft
from optimist_proposer.core.sources import NOT_PREDICTED

_MOST_EXPONENT = 30.0


class Path(NamedTuple):
    """A candidate that agrees with the nodes up to here."""

    factor: float
    kind: int
    length: int
    """Tokens that agreed before the first node, if that counts on for the kind; else 0."""
    place: int
    """Where the first node stands, or would stand; the node behind `steps` others at place + steps."""
    stop: int
    resume: int
    is_cursor: bool


class Branch(NamedTuple):
    """What may come behind a node."""

    token_id: int
    weight: float
    position: int
    """In the predictions; NOT_PREDICTED for none."""
    paths: list[Path]


class TreeGrower:
    """Grows one tree."""

    def __init__(
        self,
        sight: Sight,
        weights: Weights,
        positions: "array[int]",
        max_tokens: int,
        min_value: float,
    ) -> None:
        """Takes what candidates were found in, and the bounds of the tree (`Follower.propose`)."""
        self._text, self._classes = sight.text, sight.classes
        self._alignment, self._num_predicted = sight.alignment, sight.num_predicted
        self._weights, self._positions = weights, positions
        self._max_tokens, self._min_value = max_tokens, min_value
        self._heap: list[tuple[float, int, int, Branch, int]] = []
        self._num_pushed = 0
        self._draft = Draft()

    def grow(self, candidates: list[tuple[Candidate, float]], none_logit: float) -> Draft:
        """Returns the tree.

        Args:
            candidates: What may come first, with logits.
            none_logit: Logit of none of them being right.
        """
        branches: dict[int, Branch] = {}
        for candidate, logit in candidates:
            self._add_root(branches, candidate, logit - none_logit)
        self._push_all(branches, 1.0, NO_PARENT, 0)
        while self._heap and len(self._draft) < self._max_tokens:
            value, _, parent, branch, step = heappop(self._heap)
            self._take(branch, -value, parent, step)
        return self._draft

    def _add_root(self, branches: dict[int, Branch], candidate: Candidate, logit: float) -> None:
        place, kind = candidate.place, candidate.kind
        paths = []
        if place != NOWHERE:
            alignment, source = self._alignment, SOURCE[kind]
            factor = self._weights.next_start(
                kind, source, min(logit, MOST_LOGIT), alignment.rate, alignment.runs
            )
            is_cursor = alignment.pending is None and place == alignment.place and alignment.run > 0
            length = candidate.length if kind in (PREDICTED, OWN) else 0
            paths = [Path(factor, kind, length, place, candidate.stop, candidate.resume, is_cursor)]
        self._add(branches, candidate.token_id, exp(min(logit, _MOST_EXPONENT)), place, paths)

    def _add(
        self,
        branches: dict[int, Branch],
        token_id: int,
        weight: float,
        place: int,
        paths: list[Path],
    ) -> None:
        is_predicted = 0 <= place < self._num_predicted
        position = self._positions[place] if is_predicted else NOT_PREDICTED
        known = branches.get(token_id)
        if known is None:
            branches[token_id] = Branch(token_id, weight, position, paths)
        else:
            branches[token_id] = Branch(
                token_id,
                known.weight + weight,
                known.position if known.position != NOT_PREDICTED else position,
                known.paths + paths,
            )

    def _push_all(self, branches: dict[int, Branch], value: float, parent: int, step: int) -> None:
        share = value / (1.0 + sum(branch.weight for branch in branches.values()))
        for branch in branches.values():
            self._push(branch, branch.weight * share, parent, step)

    def _push(self, branch: Branch, value: float, parent: int, step: int) -> None:
        if value >= self._min_value:
            self._num_pushed += 1
            heappush(self._heap, (-value, self._num_pushed, parent, branch, step))

    def _take(self, branch: Branch, value: float, parent: int, step: int) -> None:
        """Makes a node of a branch, and of what comes behind it as long as that is likeliest."""
        draft = self._draft
        while True:
            node = len(draft)
            draft.token_ids.append(branch.token_id)
            draft.parents.append(parent)
            draft.positions.append(branch.position)
            draft.values.append(value)
            step += 1
            if step >= MOST_STEPS:
                return
            branches = self._continue(branch, step)
            if len(branches) != 1:
                self._push_all(branches, value, node, step)
                return
            (branch,) = branches.values()
            value *= branch.weight / (1.0 + branch.weight)
            is_next = not self._heap or value >= -self._heap[0][0]
            if value < self._min_value:
                return
            if not is_next or node + 1 >= self._max_tokens:
                self._push(branch, value, node, step)
                return
            parent = node

    def _continue(self, branch: Branch, step: int) -> dict[int, Branch]:
        """Returns what may come behind a branch, `step` nodes behind the output."""
        text, num_places, weights = self._text, len(self._text), self._weights
        branches: dict[int, Branch] = {}
        row = self._classes[branch.token_id] * NUM_CLASSES
        for path in branch.paths:
            factor, kind, length, first, stop, resume, is_cursor = path
            place = first + step
            if place == stop:
                place = resume
                path = Path(factor, kind, length, place - step, NO_STOP, NO_STOP, False)
                stop, is_cursor = NO_STOP, False
            if place >= num_places or text[place] < 0:
                continue
            token_id, source = text[place], SOURCE[kind]
            length = min(length + step, MOST_LENGTH)
            weight = (
                factor
                * weights.next_length[source][length]
                * weights.next_step[kind][step]
                * weights.next_class[source][row + self._classes[token_id]]
            )
            if is_cursor:
                weight *= weights.next_cursor[length]
            if stop == NO_STOP and place < self._num_predicted:
                weight = self._replace(branches, path, place, step, weight)
            self._add(branches, token_id, weight, place, [path])
        return branches

    def _replace(
        self, branches: dict[int, Branch], path: Path, place: int, step: int, weight: float
    ) -> float:
        """Adds what a rule puts in a place; returns the weight of what stands there."""
        rules = self._alignment.rules.find(self._text, place)
        if not rules:
            return weight
        rule = rules[0]
        resume = place + len(rule.replaced)
        replaced = Path(
            path.factor,
            path.kind,
            path.length,
            rule.place - step,
            rule.place + rule.length,
            resume,
            False,
        )
        ruled = weight * self._weights.next_rule[rule.sightings]
        self._add(branches, self._text[rule.place], ruled, rule.place, [replaced])
        return weight * self._weights.next_rule_passed[rule.sightings]
