"""Drafting level by level with a network that is fed its own drafts."""

import torch

from optimist_common.draft_source import DraftSource
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep
from optimist_worker.drafters.network import DraftNetwork, Thought
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
        """Sets the drafter up.

        Args:
            source: What to call it.
            network: What drafts.
            shape: Of the drafts.
            sampling: Parameters of all slots.
            rule: By which the drafts will be judged.
        """
        self.source, self.max_tokens, self.max_depth = source, shape.num_tokens, shape.depth
        self._network, self._shape, self._sampling = network, shape, sampling
        self._rule = shape.rule(rule)

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot."""
        self._network.admit(slot)

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for some rows."""
        limits = torch.where(self._network.is_ready(rows), rows.limits, 0)
        growth = Growth(self._shape, len(rows.slots), rows.slots.device)
        thought = self._network.begin(rows)
        growth.add(self._draft(rows, thought, 1))
        known = _Features(len(rows.slots), thought)
        for depth in range(1, min(self._shape.depth, rows.width)):
            num_fed = growth.num_fed
            token_ids, parents, bits = growth.advance()
            thought = self._network.feed(
                rows,
                token_ids,
                depth,
                num_fed,
                None if self._shape.is_chain else bits,
                known.of(parents),
            )
            known.add(thought)
            growth.add(self._draft(rows, thought, depth + 1))
        drafts, fed = growth.finish(limits, int(self.source))
        return Proposal(drafts, fed)

    def observe(self, step: VerifiedStep) -> None:
        """Keeps what was accepted of the drafts that were fed, and takes the target's pass in."""
        drafts, accepted = step.proposal.drafts, step.verdict.num_accepted
        was_drafted = (drafts.sources == int(self.source)) & (step.num_emitted > 0)
        path = _path(step)
        fed = step.proposal.fed
        if fed is None or not drafts.width:
            num_kept, fed_path = torch.zeros_like(accepted), path
        else:
            fed_path = fed.gather(1, path)
            places = torch.arange(path.shape[1], device=path.device)
            is_kept = (fed_path >= 0) & (places < accepted[:, None]) & was_drafted[:, None]
            # What the row's blocks have no room for was not written.
            room = step.rows.columns.capacity - step.rows.columns.num_tokens
            is_kept &= fed_path < room[:, None]
            num_kept = is_kept.cumprod(1).sum(1)
        self._network.observe(step, was_drafted, fed_path, num_kept)

    def _draft(self, rows: DraftRows, thought: Thought, depth: int) -> Level:
        return draft_level(thought.logits, rows, depth, self._sampling, self._shape, self._rule)


class _Features:
    """What came with each node that was fed, and with the last known token."""

    def __init__(self, num_rows: int, first: Thought) -> None:
        self._num_rows = num_rows
        self._levels: list[torch.Tensor] = []
        self.add(first)

    def add(self, thought: Thought) -> None:
        if thought.features is not None:
            self._levels.append(
                thought.features.view(self._num_rows, -1, thought.features.shape[1])
            )

    def of(self, fed: torch.Tensor) -> torch.Tensor | None:
        """Returns those of fed nodes, -1 for the last known token, `[num_rows * n, dim]`."""
        if not self._levels:
            return None
        pool = torch.cat(self._levels, 1)
        index = (fed + 1)[:, :, None].expand(-1, -1, pool.shape[2])
        return pool.gather(1, index).flatten(0, 1)


def _path(step: VerifiedStep) -> torch.Tensor:
    """Returns the accepted nodes of each row in order, `[num_rows, width]`."""
    drafts = step.proposal.drafts
    if step.verdict.path is not None:
        return step.verdict.path
    nodes = torch.arange(drafts.width, device=drafts.token_ids.device)
    return nodes.expand(drafts.num_rows, -1)
