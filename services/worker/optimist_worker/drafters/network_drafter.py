"""Drafters with a network: fed its own drafts level by level, or heads for all levels at once."""

import torch

from optimist_common.drafts import DraftSource
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.batch.flat_batch import FedLevel
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.drafts import no_drafts
from optimist_worker.core.plan import Admission
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep
from optimist_worker.drafters.heads.medusa import MedusaHeads
from optimist_worker.drafters.network import DraftNetwork, KeptDrafts, LastFeatures, Thought
from optimist_worker.drafters.shape import DraftShape, Growth, Level, draft_level


class AutoregressiveDrafter:
    """A draft model, the quantised target or an EAGLE head, as a chain or as a tree."""

    def __init__(
        self,
        source: DraftSource,
        network: DraftNetwork,
        shape: DraftShape,
        sampling: SamplingTable,
        rule: AcceptanceRule,
    ) -> None:
        """Sets the drafter up; `rule` is the one by which the drafts will be judged."""
        self.source, self.max_tokens, self.max_depth = source, shape.num_tokens, shape.depth
        self._network, self._shape, self._sampling = network, shape, sampling
        self._rule = shape.rule(rule)

    def admit(self, admission: Admission) -> None:
        """Forgets whatever it knew of a slot."""
        self._network.admit(admission.slot)

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for some rows."""
        limits = self._network.find_limits(rows)
        if self._network.reads_sizes and not limits.any():
            return Proposal(no_drafts(len(rows.slots), rows.slots.device))
        growth = Growth(self._shape, len(rows.slots), rows.slots.device)
        thought = self._network.begin(rows)
        growth.add(self._draft(rows, thought, 1))
        thoughts = [thought]
        for depth in range(1, min(self._shape.depth, rows.width)):
            num_fed = growth.num_fed
            token_ids, parents, bits = growth.advance()
            used = None if self._shape.is_chain else bits
            level = FedLevel(token_ids, depth, num_fed, used, _features(thoughts, parents))
            thoughts.append(self._network.feed(rows, level))
            growth.add(self._draft(rows, thoughts[-1], depth + 1))
        drafts, fed = growth.finish(limits, int(self.source))
        return Proposal(drafts, fed)

    def observe(self, step: VerifiedStep) -> None:
        """Keeps what was accepted of the drafts that were fed, and takes the target's pass in."""
        drafts, accepted = step.proposal.drafts, step.verdict.num_accepted
        was_drafted = (drafts.sources == int(self.source)) & (step.num_emitted > 0)
        path = step.verdict.path
        if path is None:
            path = torch.arange(drafts.width, device=accepted.device).expand(drafts.num_rows, -1)
        fed = step.proposal.fed
        if fed is None or not drafts.width:
            number, fed_path = torch.zeros_like(accepted), path
        else:
            fed_path = fed.gather(1, path)
            indices = torch.arange(path.shape[1], device=path.device)
            is_kept = (fed_path >= 0) & (indices < accepted[:, None]) & was_drafted[:, None]
            # What the row's blocks have no room for was not written.
            room = step.rows.columns.capacity - step.rows.columns.num_tokens
            is_kept &= fed_path < room[:, None]
            number = is_kept.cumprod(1).sum(1)
        self._network.observe(step, KeptDrafts(was_drafted, fed_path, number))

    def _draft(self, rows: DraftRows, thought: Thought, depth: int) -> Level:
        return draft_level(thought.logits, rows, depth, self._sampling, self._shape, self._rule)


def _features(thoughts: list[Thought], fed: torch.Tensor) -> torch.Tensor | None:
    """Returns those of fed nodes, -1 for the last known token, `[num_rows * n, dim]`."""
    levels = [each.features for each in thoughts if each.features is not None]
    if not levels:
        return None
    pool = torch.cat([level.view(len(fed), -1, level.shape[1]) for level in levels], 1)
    index = (fed + 1)[:, :, None].expand(-1, -1, pool.shape[2])
    return pool.gather(1, index).flatten(0, 1)


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
        self._last = LastFeatures(heads.layer_weight.shape[-1], table, dtype)

    def admit(self, admission: Admission) -> None:
        """Forgets the slot's hidden state."""
        self._last.forget(admission.slot)

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
