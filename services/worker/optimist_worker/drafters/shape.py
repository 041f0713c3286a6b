"""Which drafts to make: a chain, or a tree of a fixed or of a dynamic shape, level by level."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from optimist_worker.core.acceptance.noise import Stream, gumbel
from optimist_worker.core.acceptance.processing import process
from optimist_worker.core.acceptance.sampling_table import SamplingColumns, SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.drafts import Drafts
from optimist_worker.drafters.drafter import DraftRows


@dataclass(slots=True)
class Level:
    """The children of some nodes, in the order in which they are to be verified.

    Of the parents of a level of each row, `[num_rows, num_parents, width]`.
    """

    token_ids: Tensor
    """Int64, all different for a parent."""
    log_probabilities: Tensor
    """How likely the drafter finds each, given its parent."""
    probabilities: Tensor | None
    """What each was drawn from, float32 `[..., vocab_size]`; None: not by chance."""

    def repeat(self, num_parents: int) -> "Level":
        """Gives the children of one parent to several, `[num_rows, num_parents, width]`."""
        return Level(
            self.token_ids.expand(-1, num_parents, -1),
            self.log_probabilities.expand(-1, num_parents, -1),
            None
            if self.probabilities is None
            else self.probabilities.expand(-1, num_parents, -1, -1),
        )


def choose_drafts(
    scores: Tensor,
    columns: SamplingColumns,
    positions: Tensor,
    num_children: int,
    rule: AcceptanceRule | None,
) -> Level:
    """Chooses the tokens that the rule is likely to accept after n nodes, `[n, num_children]`.

    The coupled rule adds the target's own noise, so that both choose the same token as often as
    their distributions allow. Under rejection they are drawn without replacement by the Gumbel
    top-k trick (Kool, van Hoof and Welling, "Stochastic beams and where to find them", 2019).
    Otherwise they are the most likely ones, which any rule may be given as certain drafts.

    Scores are the drafter's, processed, `[n, vocab_size]`; the rule is that of `DraftShape.rule`.
    """
    vocab_size = scores.shape[-1]
    keys = scores
    if rule in (AcceptanceRule.COUPLED, AcceptanceRule.REJECTION):
        stream = Stream.TARGET if rule is AcceptanceRule.COUPLED else Stream.DRAFT
        noise = gumbel(columns.seed, positions, vocab_size, stream)
        keys = scores + noise * columns.samples[:, None]
    token_ids = keys.topk(num_children, dim=-1).indices
    log_probabilities = scores.gather(1, token_ids) - scores.logsumexp(-1, keepdim=True)
    probabilities = None
    if rule is AcceptanceRule.REJECTION:
        probabilities = _without_replacement(scores, token_ids)
    return Level(token_ids, log_probabilities, probabilities)


def _without_replacement(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Returns what each token was drawn from: all but the tokens before it.

    Where these were all there is, the token is as good as certain.
    """
    number, num_children = token_ids.shape
    shape = (number, num_children, scores.shape[-1])
    drawn = torch.empty(shape, dtype=torch.float32, device=scores.device)
    left = scores.clone()
    for rank in range(num_children):
        token = token_ids[:, rank : rank + 1]
        is_empty = left.amax(-1, keepdim=True) == -torch.inf
        certain = torch.zeros_like(left).scatter_(1, token, 1.0)
        drawn[:, rank] = torch.where(is_empty, certain, left.softmax(-1))
        left.scatter_(1, token, -torch.inf)
    return drawn


RANK_SHARE = 0.5
"""In a fixed tree, the drafter's second choice is taken to be this likely relative to its first,
the third relative to the second, and so on."""


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How many drafts, in how many levels, and from how many nodes of each level they go on."""

    num_tokens: int
    """Nodes of the tree."""
    depth: int
    """Levels."""
    width: int = 1
    """Nodes of a level that get children, and children of each; 1 makes a chain."""
    is_dynamic: bool = False
    """Whether the drafter's own probabilities choose the nodes (EAGLE-2, arXiv 2406.16858), and
    not how high each token ranks (a fixed shape, as in Medusa, arXiv 2401.10774)."""

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return self.width == 1

    def rule(self, rule: AcceptanceRule) -> AcceptanceRule | None:
        """Returns the rule by which drafts are chosen if `rule` judges them; None: without chance.

        Which nodes a dynamic tree has depends on what they are; so under rejection none of them
        may be drawn by chance.
        """
        return None if self.is_dynamic and rule is AcceptanceRule.REJECTION else rule


def draft_level(
    logits: torch.Tensor,
    rows: DraftRows,
    depth: int,
    sampling: SamplingTable,
    shape: DraftShape,
    rule: AcceptanceRule | None,
) -> Level:
    """Chooses the candidates, `depth` levels down, after each node of a level.

    Penalties and grammars are left out: that costs some acceptance, and nothing else. The logits
    are the drafter's, `[num_rows * num_nodes, vocab_size]`; the rule is that of `DraftShape.rule`.
    """
    num_rows, scores = len(rows.slots), logits
    num_nodes = len(logits) // num_rows
    slots = rows.slots.repeat_interleave(num_nodes)
    positions = (rows.columns.num_tokens + depth - 1).repeat_interleave(num_nodes)
    if rows.needs.processes:
        scores = process(logits, slots, sampling, rows.needs._replace(penalizes=False), None)
    used = rule if rows.needs.samples else None
    choice = choose_drafts(scores, sampling.gather(slots), positions, shape.width, used)
    size = (num_rows, num_nodes, shape.width)
    probabilities = choice.probabilities
    return Level(
        choice.token_ids.view(size),
        choice.log_probabilities.view(size),
        None if probabilities is None else probabilities.view(*size, -1),
    )


class Growth:
    """A tree for each row that grows level by level.

    All candidates stay in a pool, level after level; in the end the best nodes of the pool are
    taken. A node's score is the sum over its path, so no node is better than its parent, and as
    ties go to the earlier one the best nodes always form a tree.
    """

    def __init__(self, shape: DraftShape, num_rows: int, device: torch.device) -> None:
        self._shape, self._num_rows, self._device = shape, num_rows, device
        self._tokens: list[torch.Tensor] = []
        self._parents: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []
        self._probabilities: list[torch.Tensor] = []
        self._bits: list[torch.Tensor] = []
        self._fed: list[torch.Tensor] = []
        self._frontier: torch.Tensor | None = None
        self.num_fed = 0
        """Nodes per row that were fed to the drafter."""

    def add(self, level: Level) -> None:
        """Adds the children of the frontier, or at first those of the rows' last known tokens."""
        num_parents, width = level.token_ids.shape[1:]
        # Rounding may make a certain token more than certain, and padding may be no number at all.
        scores = level.log_probabilities.clamp(max=0.0)
        scores = torch.where(scores.isnan(), -torch.inf, scores)
        if not self._shape.is_dynamic:
            ranks = torch.arange(width, dtype=scores.dtype, device=self._device)
            # A token that cannot be drawn at all stays out of fixed trees too.
            static = ranks * math.log(RANK_SHARE) - 1.0
            scores = torch.where(scores.isneginf(), scores, static)
        if self._frontier is None:
            parents = torch.full((self._num_rows, num_parents), -1, device=self._device)
            bits = torch.zeros_like(parents)
        else:
            parents = self._frontier
            scores = scores + self._pool(self._scores).gather(1, parents)[:, :, None]
            bits = self._pool(self._bits).gather(1, parents)
        size = (self._num_rows, num_parents, width)
        self._tokens.append(level.token_ids.flatten(1))
        self._parents.append(parents[:, :, None].expand(size).flatten(1))
        self._scores.append(scores.flatten(1))
        self._bits.append(bits[:, :, None].expand(size).flatten(1))
        self._fed.append(torch.full_like(self._parents[-1], -1))
        if level.probabilities is not None:
            self._probabilities.append(level.probabilities.flatten(1, 2))

    def advance(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Chooses the nodes of the last level that the next one grows from, to be fed.

        Returns their tokens, their parents' indices among the fed nodes (-1: none), and their
        ancestors among these as bits, themselves included; `[num_rows, num_nodes]`.
        """
        scores = self._scores[-1]
        number = min(self._shape.width, scores.shape[1])
        every = torch.arange(number, device=self._device).expand(self._num_rows, number)
        chosen = scores.topk(number, 1).indices if number < scores.shape[1] else every
        fed = self.num_fed + every
        parents = self._parents[-1].gather(1, chosen)
        parent_fed = torch.full_like(fed, -1)
        if len(self._fed) > 1:
            parent_fed = self._pool(self._fed).gather(1, parents)
        bits = self._bits[-1].gather(1, chosen) | (1 << (fed % 64))
        self._bits[-1] = self._bits[-1].scatter(1, chosen, bits)
        self._fed[-1] = self._fed[-1].scatter(1, chosen, fed)
        before = sum(scores.shape[1] for scores in self._scores[:-1])
        self._frontier = chosen + before
        self.num_fed += number
        return self._tokens[-1].gather(1, chosen), parent_fed, bits

    def finish(self, limits: torch.Tensor, source: int) -> tuple[Drafts, torch.Tensor]:
        """Takes the best nodes of each row, at most its limit.

        Returns the drafts, and which fed node each of them was, -1 for none.
        """
        scores, parents = self._pool(self._scores), self._pool(self._parents)
        width = min(self._shape.num_tokens, scores.shape[1])
        order = scores.argsort(dim=1, descending=True, stable=True)
        indices = torch.empty_like(order).scatter_(
            1, order, torch.arange(order.shape[1], device=self._device).expand_as(order)
        )
        chosen = order[:, :width]
        moved = parents.gather(1, chosen)
        moved = torch.where(moved < 0, -1, indices.gather(1, moved.clamp(min=0)))
        # The parents of impossible nodes, which do not count, may have been left out.
        moved = moved.clamp(max=width - 1)
        is_possible = ~scores.gather(1, chosen).isneginf()
        number = torch.minimum(is_possible.sum(1), limits)
        probabilities = None
        if self._probabilities:
            pool = torch.cat(self._probabilities, 1)
            probabilities = pool.gather(1, chosen[:, :, None].expand(-1, -1, pool.shape[2]))
        drafts = Drafts(
            token_ids=self._pool(self._tokens).gather(1, chosen),
            num_tokens=number,
            sources=torch.where(number > 0, source, 0),
            parents=None if self._shape.is_chain else moved,
            max_siblings=self._shape.width,
            probabilities=probabilities,
        )
        return drafts, self._pool(self._fed).gather(1, chosen)

    @staticmethod
    def _pool(levels: list[torch.Tensor]) -> torch.Tensor:
        return levels[0] if len(levels) == 1 else torch.cat(levels, 1)
