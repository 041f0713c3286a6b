"""Which drafts to make: a chain, or a tree of a fixed or of a dynamic shape."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.acceptance.noise import Stream, gumbel
from optimist_worker.core.acceptance.processing import process
from optimist_worker.core.acceptance.sampling_table import SamplingColumns, SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.drafters.drafter import DraftRows


class DraftChoice(NamedTuple):
    """The children of n nodes, in the order in which they are to be verified."""

    token_ids: Tensor
    """Int64 `[n, num_children]`, all different for a node."""
    log_probabilities: Tensor
    """How likely the drafter finds each, given its parent; `[n, num_children]`."""
    probabilities: Tensor | None
    """What each was drawn from, float32 `[n, num_children, vocab_size]`; None: not by chance."""


def choose_drafts(
    scores: Tensor,
    columns: SamplingColumns,
    positions: Tensor,
    num_children: int,
    rule: AcceptanceRule | None,
) -> DraftChoice:
    """Chooses the tokens that the rule is likely to accept after some nodes.

    The coupled rule adds the target's own noise, so that both choose the same token as often as
    their distributions allow. Under rejection they are drawn without replacement by the Gumbel
    top-k trick (Kool, van Hoof and Welling, "Stochastic beams and where to find them", 2019).
    Otherwise they are the most likely ones, which any rule may be given as certain drafts.

    Args:
        scores: The drafter's, processed, `[n, vocab_size]`.
        columns: The sampling parameters of each node's request.
        positions: Positions of the tokens to be drafted, int64 `[n]`.
        num_children: Tokens per node, at most the vocabulary.
        rule: By which they will be judged; None leaves out all chance, which is needed under
            rejection where it depends on the drafts themselves which of them are verified.
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
    return DraftChoice(token_ids, log_probabilities, probabilities)


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
    """How many drafts, in how many levels, and from how many places of each level they go on."""

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
        """Returns the rule by which drafts are chosen if they will be judged by `rule`.

        Which nodes a dynamic tree has depends on what they are; so under rejection none of them
        may be drawn by chance.
        """
        return None if self.is_dynamic and rule is AcceptanceRule.REJECTION else rule


@dataclass(slots=True)
class Level:
    """Candidates of one level, the children of its parents `[num_rows, num_parents, width]`."""

    token_ids: torch.Tensor
    log_probabilities: torch.Tensor
    probabilities: torch.Tensor | None
    """The distribution that each was drawn from, `[..., vocab_size]`."""

    def repeat(self, num_parents: int) -> "Level":
        """Gives the children of one parent to several, `[num_rows, num_parents, width]`."""
        return Level(
            self.token_ids.expand(-1, num_parents, -1),
            self.log_probabilities.expand(-1, num_parents, -1),
            None
            if self.probabilities is None
            else self.probabilities.expand(-1, num_parents, -1, -1),
        )


def draft_level(
    logits: torch.Tensor,
    rows: DraftRows,
    depth: int,
    sampling: SamplingTable,
    shape: DraftShape,
    rule: AcceptanceRule | None,
) -> Level:
    """Chooses the candidates after each node of a level.

    Penalties and grammars are left out: that costs some acceptance, and nothing else.

    Args:
        logits: The drafter's, `[num_rows * num_nodes, vocab_size]`.
        rows: The rows.
        depth: Of the candidates, from 1.
        sampling: Parameters of all slots.
        shape: Of the drafts.
        rule: As `DraftShape.rule` returns it.
    """
    num_rows = len(rows.slots)
    num_nodes = len(logits) // num_rows
    slots = rows.slots.repeat_interleave(num_nodes)
    positions = (rows.columns.num_tokens + depth - 1).repeat_interleave(num_nodes)
    if rows.needs.processes:
        scores = process(logits, slots, sampling, rows.needs._replace(penalizes=False), None)
    else:
        scores = logits
    if not rows.needs.samples:
        rule = None
    choice = choose_drafts(scores, sampling.gather(slots), positions, shape.width, rule)
    size = (num_rows, num_nodes, shape.width)
    probabilities = choice.probabilities
    return Level(
        choice.token_ids.view(size),
        choice.log_probabilities.view(size),
        None if probabilities is None else probabilities.view(*size, -1),
    )
