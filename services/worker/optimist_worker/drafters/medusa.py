"""Medusa heads as a drafter: all levels at once from the target's last hidden state."""

import torch

from optimist_common.draft_source import DraftSource
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep
from optimist_worker.drafters.heads.medusa import MedusaHeads
from optimist_worker.drafters.network import LastFeatures
from optimist_worker.drafters.shape import DraftShape, Growth, draft_level


class MedusaDrafter:
    """Each head guesses the token at its distance, whatever the others guess."""

    source = DraftSource.MEDUSA

    def __init__(
        self,
        heads: MedusaHeads,
        table: SlotTable,
        shape: DraftShape,
        sampling: SamplingTable,
        dtype: torch.dtype,
        rule: AcceptanceRule,
    ) -> None:
        """Sets the drafter up; `rule` is the one by which the drafts will be judged."""
        self.max_tokens, self.max_depth = shape.num_tokens, min(shape.depth, heads.num_heads)
        self._heads, self._shape, self._sampling = heads, shape, sampling
        self._rule = shape.rule(rule)
        size = heads.layer_weight.shape[-1]
        self._last = LastFeatures(table.num_slots, size, dtype, table.device)

    def admit(self, slot: int) -> None:
        """Forgets the slot's hidden state."""
        self._last.forget(slot)

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for the rows that have emitted something."""
        limits = torch.where(self._last.is_known(rows.slots), rows.limits, 0)
        logits = self._heads(self._last.read(rows.slots))
        growth = Growth(self._shape, len(rows.slots), rows.slots.device)
        for depth in range(1, min(self.max_depth, rows.width) + 1):
            level = draft_level(
                logits[depth - 1], rows, depth, self._sampling, self._shape, self._rule
            )
            if depth > 1:
                level = level.repeat(growth.advance()[0].shape[1])
            growth.add(level)
        drafts, _ = growth.finish(limits, int(self.source))
        return Proposal(drafts)

    def observe(self, step: VerifiedStep) -> None:
        """Keeps the hidden state that the last emitted token came from."""
        if step.features is None:
            raise ValueError("Medusa heads need the target's hidden states")
        rows = step.rows
        row = torch.arange(len(rows.slots), device=rows.slots.device)
        last = step.find_tokens(row, rows.num_known_tokens + step.verdict.num_accepted - 1)
        self._last.keep(rows.slots, step.features[last], step.num_emitted > 0)
