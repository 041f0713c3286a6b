"""What every drafter offers, and what it is given."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from optimist_common.draft_source import DraftSource
from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.flat_batch import PassSize
from optimist_worker.core.batch.slot_table import FittedRows, SlotColumns
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.ragged import Ragged


@dataclass(slots=True)
class DraftRows:
    """Rows that want drafts."""

    slots: torch.Tensor
    """`[num_rows]`"""
    columns: SlotColumns
    """Of these slots, verified."""
    limits: torch.Tensor
    """Most drafts per row; 0 for none, `[num_rows]`."""
    width: int
    """Most drafts of any row, known to the host."""
    max_length: int
    """At least as long as any row is, known to the host, in tokens."""
    max_unseen: int
    """Most tokens of one row that the drafter is shown now, known to the host."""
    num_unseen: int
    """Most of them of all rows."""
    needs: Needs
    """What the rows' sampling needs at least."""

    def select(self, chosen: torch.Tensor) -> "DraftRows":
        """Returns some rows."""
        columns = SlotColumns(*(column[chosen] for column in self.columns))
        return replace(self, slots=self.slots[chosen], columns=columns, limits=self.limits[chosen])


@dataclass(slots=True)
class Proposal:
    """Drafts, and what the drafter wants to know of them once they are verified."""

    drafts: Drafts
    fed: torch.Tensor | None = None
    """Which of the tokens that the drafter fed to itself each node was, -1 for none; int64
    `[num_rows, width]`."""


@dataclass(slots=True)
class VerifiedStep:
    """A pass of the target, after the slots have moved on."""

    rows: FittedRows
    """The rows as they were before."""
    tokens: Ragged
    """Tokens of the pass, by row: the known ones, then the drafts."""
    size: PassSize
    proposal: Proposal
    """What was verified, by whomever it was drafted."""
    verdict: Verdict
    num_emitted: torch.Tensor
    """`[num_rows]`"""
    features: torch.Tensor | None
    """What the target computed for each token, if the drafter has asked for it, `[size, dim]`."""

    def find_tokens(self, row: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Returns which tokens of the pass verified ones were.

        Args:
            row: Row of each, int64 `[n]`.
            offset: Its place among the row's verified tokens: the known ones, then the accepted
                drafts; int64 `[n]`.

        Returns:
            Int64 `[n]`; for padding some token.
        """
        known = self.rows.num_known_tokens[row]
        node, path = offset - known, self.verdict.path
        if path is not None and path.shape[1]:
            node = torch.where(node < 0, node, path[row, node.clamp(0, path.shape[1] - 1)])
        place = self.tokens.starts[row] + known + node
        return place.clamp(0, self.tokens.size - 1)


class Drafter(Protocol):
    """Proposes what the target may say next. Never right or wrong, only more or less useful."""

    source: DraftSource
    max_tokens: int
    """Most drafts per row, all branches of a tree together."""
    max_depth: int
    """Most of them that can be accepted."""

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot: another request holds it now."""

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for some rows; those it knows too little about get none."""

    def observe(self, step: VerifiedStep) -> None:
        """Learns from a pass of the target what was accepted of the drafts, and what came else."""
