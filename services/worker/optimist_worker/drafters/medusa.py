"""Medusa heads as a drafter: all levels at once from the target's last hidden state."""

import torch

from optimist_common.draft_source import DraftSource
from optimist_worker.core.acceptance_rule import AcceptanceRule
from optimist_worker.core.sampling_table import SamplingTable
from optimist_worker.core.slot_table import SlotTable
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep
from optimist_worker.drafters.growth import Growth
from optimist_worker.drafters.shape import DraftShape, draft_level
from optimist_worker.heads.medusa import MedusaHeads


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
        num_rows = table.num_slots + 1
        self._hidden = torch.zeros(
            (num_rows, heads.layer_weight.shape[-1]), dtype=dtype, device=table.device
        )
        self._is_ready = torch.zeros(num_rows, dtype=torch.bool, device=table.device)

    def admit(self, slot: int) -> None:
        """Forgets the slot's hidden state."""
        self._is_ready[slot] = False

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for the rows that have emitted something."""
        limits = torch.where(self._is_ready[rows.slots], rows.limits, 0)
        logits = self._heads(self._hidden[rows.slots])
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
        rows, verdict = step.rows, step.verdict
        accepted = verdict.num_accepted
        last = accepted
        if verdict.path is not None and verdict.path.shape[1]:
            deepest = verdict.path.gather(1, (accepted - 1).clamp(min=0)[:, None])[:, 0]
            last = torch.where(accepted > 0, deepest + 1, 0)
        place = step.tokens.starts[:-1] + rows.num_known_tokens - 1 + last
        hidden = step.features[place.clamp(0, step.tokens.size - 1)]
        has_emitted = step.num_emitted > 0
        kept = self._hidden[rows.slots]
        self._hidden.index_copy_(0, rows.slots, torch.where(has_emitted[:, None], hidden, kept))
        self._is_ready.index_copy_(0, rows.slots, self._is_ready[rows.slots] | has_emitted)
