"""What was planned for the rows of a step, fitted to their true state."""

from dataclasses import dataclass

import torch

from optimist_worker.core.batch.slot_table import SlotColumns, SlotTable


@dataclass(slots=True)
class FittedRows:
    """The rows of a step, `[num_rows]` each."""

    slots: torch.Tensor
    columns: SlotColumns
    """As they are before the step."""
    num_known_tokens: torch.Tensor
    """Known tokens to feed; 0 for a row that does not run."""
    ends: torch.Tensor
    """Place behind the last known token fed; the first draft's."""
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
    wanted = torch.minimum(num_known, left) * (1 - columns.has_ended)
    is_short = columns.num_computed_tokens + wanted > columns.capacity
    known = wanted.masked_fill(is_short, 0)
    ends = columns.num_computed_tokens + known
    emits = (known == left) & (known > 0)
    room = torch.minimum(columns.capacity, columns.max_length - 1) - ends
    limits = torch.minimum(num_drafts, room).clamp(min=0) * emits
    return FittedRows(slots, columns, known, ends, emits, limits, is_short)
