"""What was planned for the rows of a step, fitted to their true state."""

from dataclasses import dataclass

import torch

from optimist_worker.core.slot_table import SlotColumns, SlotTable


@dataclass(slots=True)
class FittedRows:
    """The rows of a step, `[num_rows]` each."""

    slots: torch.Tensor
    columns: SlotColumns
    """As they are before the step."""
    num_known_tokens: torch.Tensor
    """Known tokens to feed; 0 for a row that does not run."""
    emits: torch.Tensor
    """Whether the known tokens reach the row's last one, so that tokens come of it."""
    limits: torch.Tensor
    """Most drafts behind them."""
    is_short: torch.Tensor
    """Whether the row does not run because its blocks do not hold its known tokens."""

    @property
    def starts(self) -> torch.Tensor:
        """Place of the first token fed."""
        return self.columns.num_computed_tokens

    @property
    def ends(self) -> torch.Tensor:
        """Place behind the last known token fed; the first draft's."""
        return self.columns.num_computed_tokens + self.num_known_tokens


def fit_rows(
    table: SlotTable, slots: torch.Tensor, num_known: torch.Tensor, num_drafts: torch.Tensor
) -> FittedRows:
    """Fits plans to the truth.

    Known tokens beyond a row's last one do not exist and are left out. Drafts are verified only
    behind the last known token, as far as blocks and `max_length` reach. Requests that have ended
    do not run.

    Args:
        table: The state.
        slots: `[num_rows]`.
        num_known: Known tokens as planned, `[num_rows]`.
        num_drafts: Most drafts as planned, `[num_rows]`.
    """
    columns = table.gather(slots)
    left = columns.num_tokens - columns.num_computed_tokens
    known = torch.minimum(num_known, left) * (columns.has_ended == 0)
    is_short = columns.num_computed_tokens + known > columns.capacity
    known = torch.where(is_short, 0, known)
    ends = columns.num_computed_tokens + known
    emits = (known > 0) & (known == left)
    room = torch.minimum(columns.capacity - ends, columns.max_length - ends - 1)
    limits = torch.minimum(num_drafts, room).clamp(min=0) * emits
    return FittedRows(slots, columns, known, emits, limits, is_short & (left > 0))
