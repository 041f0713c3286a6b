"""How large a step may become, from what the host knows before it runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.batch.held_slot import HeldSlot
from optimist_worker.core.plan import PlannedRow


@dataclass(frozen=True, slots=True)
class StepBounds:
    """What the host knows of a step's rows, so that nobody has to wait for the device."""

    num_rows: int
    num_tokens: int
    """Most tokens of the pass."""
    num_logits: int
    """Most rows of logits."""
    max_num_queries: int
    """Most tokens of one row."""
    max_num_keys: int
    """Most keys of one row."""
    max_num_drafts: int
    """Most drafts of one row."""
    uses_windows: bool
    """Whether a row may have something to draft from its window."""
    has_trees: bool
    """Whether one of these windows is no chain."""
    uses_drafter: bool
    """Whether a row may have nothing to draft from but the drafter."""
    max_unseen: int
    """Most tokens of one row that the drafter may be shown before it drafts."""
    num_unseen: int
    """Most of them of all rows."""
    has_grammar: bool
    """Whether a row has to follow a grammar."""
    needs: Needs
    """What the rows' sampling needs at least."""

    def rounded(self, max_num_batched_tokens: int) -> "StepBounds":
        """Returns bounds of one of few sizes, so that a captured step serves many.

        Args:
            max_num_batched_tokens: Most tokens of any pass.
        """
        return replace(
            self,
            num_rows=round_up(self.num_rows),
            num_tokens=min(round_up(self.num_tokens), max(max_num_batched_tokens, self.num_tokens)),
            num_logits=round_up(self.num_logits),
            max_num_queries=round_up(self.max_num_queries),
            max_num_keys=1 << max(9, (self.max_num_keys - 1).bit_length()),
            max_num_drafts=round_up(self.max_num_drafts),
            max_unseen=round_up(self.max_unseen),
            num_unseen=round_up(self.num_unseen),
            needs=self.needs._replace(cut_width=round_up(self.needs.cut_width)),
        )


def round_up(number: int) -> int:
    """Returns the next size: a power of two, or one and a half times one."""
    if number <= 2:
        return number
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if number <= power * 3 // 4 else power


def find_bounds(
    rows: Sequence[PlannedRow], held: Sequence[HeldSlot], block_size: int, needs: Needs
) -> StepBounds:
    """Returns the bounds of a step.

    Args:
        rows: As planned, `[num_rows]`.
        held: Their slots with the blocks that the plan gives them, `[num_rows]`.
        block_size: Tokens per block.
        needs: What the rows' sampling needs.
    """
    lengths = [row.num_known_tokens + row.num_draft_tokens for row in rows]
    num_drafts = [row.num_draft_tokens for row in rows]
    capacities = [slot.num_blocks * block_size for slot in held]
    # 0 where the drafter will not draft.
    num_unseen = [
        min(slot.num_unseen, capacity) if drafts > 0 and not slot.has_window else 0
        for drafts, slot, capacity in zip(num_drafts, held, capacities, strict=True)
    ]
    return StepBounds(
        num_rows=len(rows),
        num_tokens=sum(lengths),
        num_logits=sum(num_drafts) + len(rows),
        max_num_queries=max(lengths),
        max_num_keys=max(capacities),
        max_num_drafts=max(num_drafts),
        uses_windows=any(slot.has_window for slot in held),
        has_trees=any(slot.has_window and slot.has_tree for slot in held),
        uses_drafter=any(num_unseen),
        max_unseen=max(num_unseen),
        num_unseen=sum(num_unseen),
        has_grammar=any(slot.has_grammar for slot in held),
        needs=needs,
    )
