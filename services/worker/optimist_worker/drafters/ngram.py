"""Drafts from a request's own text.

Prompt lookup (Saxena, "Prompt lookup decoding", 2023; Yang et al., "Inference with reference",
arXiv 2304.04487) with a cursor: an answer that copies mostly goes on where it has copied last, so
of several positions that look alike the one next to the cursor is taken, and where none does a
token that differed is taken for the source's, and the copy to go on after it.
"""

import torch

from optimist_common.drafts import DraftSource
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.drafts import Drafts
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep

LONGEST_MATCH = 8
"""Last tokens that are compared; more add nothing."""


def find_sources(
    token_ids: torch.Tensor, lengths: torch.Tensor, cursors: torch.Tensor
) -> torch.Tensor:
    """Returns the indices whose tokens probably come next, int64 `[num_rows]`; -1 for none.

    Args:
        token_ids: Prompts and verified outputs, `[num_rows, width]`; what lies after the length of
            a row means nothing.
        lengths: `[num_rows]`.
        cursors: Index from which each row would go on copying; -1 if it has not copied yet.
    """
    width = token_ids.shape[1]
    indices = torch.arange(width, device=token_ids.device)
    # Entry p: how many tokens before index p are the row's last ones.
    matched = torch.zeros_like(token_ids, dtype=torch.int64)
    is_equal = (indices > 0) & (indices < lengths[:, None])
    for back in range(1, LONGEST_MATCH + 1):
        last = token_ids.gather(1, (lengths - back).clamp(min=0)[:, None])
        shifted = torch.nn.functional.pad(token_ids, (back, 0))[:, :width]
        is_equal = is_equal & (shifted == last) & (indices >= back)
        matched += is_equal
    # A longer match counts for more than any distance; of equal ones the nearest is taken.
    distance = torch.where(cursors[:, None] >= 0, (indices - cursors[:, None]).abs(), indices)
    scores = torch.where(matched > 0, (matched << 32) - distance, -1)
    best, found = scores.max(1)
    fallback = torch.where(cursors < lengths, cursors, -1)
    return torch.where(best >= 0, found, fallback)


class NgramDrafter:
    """Copies on from where the last tokens of prompt and output occur before; a chain per row."""

    source = DraftSource.NGRAM

    def __init__(self, table: SlotTable, max_tokens: int) -> None:
        """Sets up a drafter of up to `max_tokens` drafts per row."""
        self.max_tokens = self.max_depth = max_tokens
        self._table = table
        self._cursors = torch.full((table.num_slots + 1,), -1, device=table.device)

    def admit(self, slot: int) -> None:
        """Forgets where the slot's output was copied from."""
        self._cursors[slot] = -1

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts what follows the best index; nothing where no index is like the row's end."""
        length = rows.columns.num_tokens
        width = min(rows.max_length, self._table.token_ids.shape[1])
        if self._table.reads_sizes:
            width = int(length.max())
        token_ids = self._table.token_ids[rows.slots, :width].long()
        cursors = self._cursors[rows.slots]
        found = find_sources(token_ids, length, cursors)
        # Rows that may not draft are among them only where sizes are not read.
        self._cursors.index_copy_(0, rows.slots, torch.where(rows.limits > 0, found, cursors))
        number = torch.minimum((length - found).clamp(max=self.max_tokens), rows.limits)
        number = torch.where(found >= 0, number, 0)
        indices = found[:, None] + torch.arange(rows.width, device=found.device)
        drafts = Drafts(
            token_ids=token_ids.gather(1, indices.clamp(0, width - 1)),
            num_tokens=number,
            sources=torch.where(number > 0, int(self.source), 0),
        )
        return Proposal(drafts)

    def observe(self, step: VerifiedStep) -> None:
        """Moves along the source as far as the row has come.

        A token that differed from its draft is taken to stand for one of the source's.
        """
        slots = step.rows.slots
        cursors = self._cursors[slots]
        moved = torch.where(cursors >= 0, cursors + step.num_emitted, -1)
        self._cursors.index_copy_(0, slots, moved)
