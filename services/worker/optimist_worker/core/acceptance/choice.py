"""Which token is chosen after each node of a verify pass; a rule says how from the scores.

A draft is accepted if it is the token chosen after its parent. So the token after a node matters
only if the node is accepted itself; where the sizes may depend on the data, which is on the CPU,
the others are left out.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.acceptance.processing import TokenCounts, count_tokens, process
from optimist_worker.core.acceptance.sampling_table import SamplingColumns
from optimist_worker.core.acceptance.verdict import Verdict, VerifyPass, reach_verdict
from optimist_worker.core.tree import (
    ancestor_matrix,
    chain_parents,
    holds_from_top,
)


class TreeWalk:
    """Where a path has got to. Elements are counted from 0 for node -1, 1 + i for node i."""

    def __init__(self, parents: Sequence[int], token_ids: Sequence[int]) -> None:
        """Begins at the top.

        Args:
            parents: Of each node, `[num_nodes]`.
            token_ids: Of each node; siblings have different ones, `[num_nodes]`.
        """
        self._children: dict[tuple[int, int], int] = {}
        self._first_child = [0] * (1 + len(parents))
        for element, (parent, token_id) in enumerate(zip(parents, token_ids, strict=True), 1):
            self._children[1 + parent, token_id] = element
            self._first_child[1 + parent] = self._first_child[1 + parent] or element
        self.ahead = [0]
        """Elements after which tokens are to be chosen now; empty at the end."""

    def look_ahead(self, most: int) -> None:
        """Adds the first child of the last element, its first child and so on.

        Args:
            most: Elements to be looked at, at least one.
        """
        while len(self.ahead) < most and (child := self._first_child[self.ahead[-1]]):
            self.ahead.append(child)

    def follow(self, chosen: Sequence[int]) -> bool:
        """Goes on by the token chosen after each of the elements ahead.

        Returns:
            Whether all of them lie on the path.
        """
        child, passed = 0, 0
        for passed, (element, token_id) in enumerate(zip(self.ahead, chosen, strict=True), 1):
            child = self._children.get((element, token_id), 0)
            if child not in self.ahead[passed : passed + 1]:
                break
        is_through = passed == len(self.ahead)
        self.ahead = [child] if child else []
        return is_through


_FIRST_LEVELS = 2
"""Levels of a row sampled at once on the CPU; twice as many each time they all agreed."""
_CACHED_SCORES = 2**17
"""Scores processed at once on the CPU at most, so that they stay in its cache."""
_SCORES_AT_ONCE = 2**25
"""Scores processed at once on other devices, where all are; bounds the memory for it."""


class Candidates(NamedTuple):
    """Nodes after which a token is chosen: n of the flat rows of a pass."""

    rows: Tensor
    """Int64 `[n]`."""
    elements: Tensor
    """0 for node -1, 1 + i for node i; int64 `[n]`."""
    positions: Tensor
    """Position of the token to be chosen, int64 `[n]`."""
    columns: SamplingColumns


Rule = Callable[[VerifyPass, Candidates, Tensor], Tensor]
"""Chooses tokens, int64 `[n]`, for some nodes from their processed scores, `[n, vocab_size]`."""


class _Tree(NamedTuple):
    """The shape of a pass's drafts."""

    parents: Tensor
    """Int64 `[R, K]`."""
    depths: Tensor
    """Int64 `[R, 1 + K]`, 0 for node -1."""


def verify_drafts(verify: VerifyPass, rule: Rule) -> Verdict:
    """Chooses a token after every node that is reached, and follows the drafts that agree."""
    logits, drafts = verify.logits, verify.drafts
    # NaN and infinity pass through a maximum, so one reduction finds them and the greedy tokens.
    largest, choices = logits.max(-1)
    is_finite = ~verify.by_row(~largest.isfinite()).any(1)
    if verify.allowed is not None:
        logits = logits.masked_fill(~verify.allowed, -torch.inf)
        choices = logits.argmax(-1)
    parents = drafts.parents
    if parents is None:
        parents = chain_parents(drafts.num_rows, drafts.width, logits.device)
    if verify.needs.processes:
        depths = torch.nn.functional.pad(drafts.depths, (1, 0))
        sampler = _Sampler(verify, rule, logits, _Tree(parents, depths))
        if not _may_read(logits):
            sampler.choose_all(choices)
        elif drafts.parents is None:
            sampler.choose_reached(choices, is_finite)
        else:
            sampler.choose_paths(choices, is_finite)
    by_row = verify.by_row(choices)
    # A chain's first node has the first choice before it, and so on.
    before = by_row[:, :-1] if drafts.parents is None else by_row.gather(1, parents + 1)
    agrees = drafts.token_ids == before
    return reach_verdict(drafts, agrees, by_row, is_finite)


class _Sampler:
    """Replaces greedy choices by those of a rule."""

    def __init__(self, verify: VerifyPass, rule: Rule, logits: Tensor, tree: _Tree) -> None:
        self.verify, self.rule, self.logits, self.tree = verify, rule, logits, tree
        self.known: TokenCounts | None = None
        if verify.needs.penalizes:
            token_ids = verify.token_ids
            if _may_read(token_ids):
                token_ids = token_ids[:, : int(verify.num_tokens.max())]
            self.known = count_tokens(
                token_ids[verify.slots],
                verify.num_prompt_tokens,
                verify.num_tokens,
                logits.shape[-1],
            )
            self.is_ancestor = ancestor_matrix(tree.parents)

    def choose_all(self, choices: Tensor) -> None:
        """Chooses after all nodes, in place; the host need not know anything but sizes."""
        number, vocab_size = self.logits.shape
        at_once = max(1, _SCORES_AT_ONCE // vocab_size)
        places = torch.arange(number, device=self.logits.device)
        for first in range(0, number, at_once):
            part = places[first : first + at_once]
            choices[first : first + at_once] = self._choose(part)

    def choose_reached(self, choices: Tensor, is_finite: Tensor) -> None:
        """Chooses after nodes of chains that are reached and not simply greedy, in place."""
        verify, nodes, depths = self.verify, self.verify.nodes, self.tree.depths
        drafts, parents = verify.drafts, self.tree.parents
        columns = verify.sampling.gather(verify.slots)
        pending = (~columns.takes_argmax & is_finite)[nodes.rows] & nodes.is_real
        flat_depths = depths[nodes.rows, nodes.offsets]
        first, levels = 0, _FIRST_LEVELS
        while first <= drafts.width:
            levels = min(levels, self._most_levels)
            chosen = verify.by_row(choices).gather(1, parents + 1)
            # What is chosen after a parent of this level or further down is not known yet.
            may_agree = (drafts.token_ids == chosen) | (depths[:, 1:] > first)
            reached = holds_from_top(may_agree, None)
            reached = torch.nn.functional.pad(reached, (1, 0), value=True)
            part = pending & (flat_depths >= first) & (flat_depths < first + levels)
            places = (part & reached[nodes.rows, nodes.offsets]).nonzero()[:, 0]
            if not len(places):
                break
            choices[places] = self._choose(places)
            first, levels = first + levels, 2 * levels

    def choose_paths(self, choices: Tensor, is_finite: Tensor) -> None:
        """Chooses along the paths that rows take down their trees, in place.

        A level has one node at most that is reached. Which one is known only when a token is chosen
        after its parent; but first children are the likeliest, so some are looked at beforehand.
        """
        verify, drafts = self.verify, self.verify.drafts
        columns = verify.sampling.gather(verify.slots)
        starts, numbers = verify.nodes.starts, drafts.num_tokens.tolist()
        is_pending = ~columns.takes_argmax & is_finite & (starts[1:] > starts[:-1])
        walks = {
            row: TreeWalk(
                self.tree.parents[row, : numbers[row]].tolist(),
                drafts.token_ids[row, : numbers[row]].tolist(),
            )
            for row in is_pending.nonzero()[:, 0].tolist()
        }
        levels = _FIRST_LEVELS
        while walks:
            for walk in walks.values():
                walk.look_ahead(min(levels, self._most_levels))
            places = torch.cat(
                [starts[row] + torch.tensor(walk.ahead) for row, walk in walks.items()]
            )
            choices[places] = chosen = self._choose(places)
            parts = torch.split(chosen, [len(walk.ahead) for walk in walks.values()])
            is_through = [
                walk.follow(part.tolist()) for walk, part in zip(walks.values(), parts, strict=True)
            ]
            levels = 2 * levels if any(is_through) else _FIRST_LEVELS
            walks = {row: walk for row, walk in walks.items() if walk.ahead}

    @property
    def _most_levels(self) -> int:
        """Levels of every row whose scores stay in the CPU's cache."""
        return max(1, _CACHED_SCORES // self.logits.shape[-1] // self.verify.drafts.num_rows)

    def _choose(self, places: Tensor) -> Tensor:
        """Chooses after the nodes at some places of the flat rows, int64 `[n]`."""
        verify = self.verify
        rows, elements = verify.nodes.rows[places], verify.nodes.offsets[places]
        slots = verify.slots[rows]
        counts = None
        if self.known is not None:
            is_before = self.is_ancestor[rows, elements]
            counts = self.known.with_drafts(rows, verify.drafts.token_ids[rows], is_before)
        scores = process(self.logits[places], slots, verify.sampling, verify.needs, counts)
        positions = verify.num_tokens[rows] + self.tree.depths[rows, elements]
        columns = verify.sampling.gather(slots)
        return self.rule(verify, Candidates(rows, elements, positions, columns), scores)


def _may_read(tensor: Tensor) -> bool:
    """Returns whether the host may look at data, because it need not wait for them."""
    return tensor.device.type == "cpu"
