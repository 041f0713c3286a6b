"""One slot's part of a forward pass: which tokens it feeds, and which logits it needs."""

from dataclasses import dataclass

from optimist_worker.core.plan import PlannedRow
from optimist_worker.core.slot import Slot


class RowFailure(Exception):  # noqa: N818
    """Says why one row cannot run; the other rows of its plan are not affected."""


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens `[start, start + num_known_tokens)` of a slot, and drafts behind its last one."""

    slot_id: int
    slot: Slot
    num_known_tokens: int
    draft_token_ids: list[int]

    @property
    def start(self) -> int:
        """Position of the first token fed."""
        return self.slot.num_computed_tokens

    @property
    def token_ids(self) -> list[int]:
        """The tokens fed, drafts last, `[num_tokens]`."""
        known = self.slot.token_ids[self.start : self.start + self.num_known_tokens]
        return known + self.draft_token_ids

    @property
    def num_tokens(self) -> int:
        """Number of tokens fed."""
        return self.num_known_tokens + len(self.draft_token_ids)

    @property
    def num_logits(self) -> int:
        """Logit rows needed: none in the middle of a prompt, else one and one per draft."""
        if self.start + self.num_known_tokens < self.slot.num_tokens:
            return 0
        return 1 + len(self.draft_token_ids)


def fit_row(planned: PlannedRow, slot: Slot, block_size: int) -> Row:
    """Fits what was planned to the slot's true state.

    Known tokens beyond the slot's last one do not exist and are left out. Drafts are verified only
    behind the last known token, as far as the window, the block table and `max_length` reach.

    Raises:
        RowFailure: The request is faulty, or its known tokens do not fit.
    """
    if slot.error is not None:
        raise RowFailure(slot.error)
    num_known = min(planned.num_known_tokens, slot.num_tokens - slot.num_computed_tokens)
    if num_known <= 0:
        raise RowFailure(f"all {slot.num_tokens} tokens are computed; there is none to feed")
    end = slot.num_computed_tokens + num_known
    capacity = len(slot.block_table) * block_size
    if end > capacity:
        raise RowFailure(
            f"too few blocks: {len(slot.block_table)} of {block_size} tokens for {end} tokens"
        )
    limit = 0
    if end == slot.num_tokens:
        limit = min(planned.num_draft_tokens, capacity - end, slot.max_length - end - 1)
    return Row(planned.slot, slot, num_known, slot.drafts(limit))
