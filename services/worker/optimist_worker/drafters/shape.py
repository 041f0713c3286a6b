"""Which drafts to make: a chain, or a tree of a fixed or of a dynamic shape."""

from dataclasses import dataclass

import torch

from optimist_worker.core.acceptance.acceptance_rule import AcceptanceRule
from optimist_worker.core.acceptance.processing import process
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.drafters.draft_choice import choose_drafts
from optimist_worker.drafters.drafter import DraftRows

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
    """Chooses the candidates behind each node of a level.

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
