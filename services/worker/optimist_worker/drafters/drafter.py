"""What every drafter offers and is given, and drafts of several drafters as those of one step."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from optimist_common.drafts import DraftSource
from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.flat_batch import PassSize
from optimist_worker.core.batch.slot_table import FittedRows, SlotColumns
from optimist_worker.core.drafts import MERGE, Drafts, Ragged
from optimist_worker.core.plan import Admission


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
    least_chance: float = 0.0
    """Chance below which a draft is not worth its time; 0 if all are, or none is saved."""

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
        """Returns which tokens of the pass verified ones were, int64 `[n]`; for padding some token.

        They are given by their row and their index among its verified tokens: the known ones, then
        the accepted drafts.
        """
        known = self.rows.num_known_tokens[row]
        node, path = offset - known, self.verdict.path
        if path is not None and path.shape[1]:
            node = torch.where(node < 0, node, path[row, node.clamp(0, path.shape[1] - 1)])
        index = self.tokens.starts[row] + known + node
        return index.clamp(0, self.tokens.size - 1)


class Drafter(Protocol):
    """Proposes what the target may say next. Never right or wrong, only more or less useful."""

    source: DraftSource
    max_tokens: int
    """Most drafts per row, all branches of a tree together."""
    max_depth: int
    """Most of them that can be accepted."""

    def admit(self, admission: Admission) -> None:
        """Forgets whatever it knew of a slot: another request holds it now."""

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for some rows; those it knows too little about get none."""

    def observe(self, step: VerifiedStep) -> None:
        """Learns from a pass of the target what was accepted of the drafts, and what came else."""


def spread(proposal: Proposal, rows: torch.Tensor, num_rows: int) -> Proposal:
    """Puts the drafts of some rows, given by number, among those of all; the others have none."""
    drafts = proposal.drafts

    def place(values: torch.Tensor, empty: int = 0) -> torch.Tensor:
        shape = (num_rows, *values.shape[1:])
        return values.new_full(shape, empty).index_copy_(0, rows, values)

    placed = replace(
        drafts,
        token_ids=place(drafts.token_ids),
        num_tokens=place(drafts.num_tokens),
        sources=place(drafts.sources),
        parents=None if drafts.parents is None else place(drafts.parents, -1),
        probabilities=None if drafts.probabilities is None else place(drafts.probabilities),
        positions=None if drafts.positions is None else place(drafts.positions, -1),
    )
    return Proposal(placed, None if proposal.fed is None else place(proposal.fed, -1))


def merge(windows: Drafts, proposal: Proposal) -> Proposal:
    """Takes each row's drafts from its window, or if that has none from the drafter."""
    drafted, fed = proposal.drafts, proposal.fed
    if windows.width == 0:
        return proposal
    merged: Drafts = MERGE(windows.num_tokens, windows, drafted)
    if drafted.probabilities is not None:
        missing = merged.width - drafted.width
        probabilities = torch.nn.functional.pad(drafted.probabilities, (0, 0, 0, missing))
        is_certain = windows.num_tokens > 0
        merged = replace(merged, probabilities=probabilities, is_certain=is_certain)
    if fed is not None:
        fed = torch.nn.functional.pad(fed, (0, merged.width - fed.shape[1]), value=-1)
    return Proposal(merged, fed)
