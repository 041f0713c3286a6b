"""Drafting level by level with a network that is fed its own drafts."""

from dataclasses import dataclass
from typing import Protocol

import torch

from optimist_common.drafts import DraftSource
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.batch.flat_batch import FedLevel
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep
from optimist_worker.drafters.shape import DraftShape, Growth, Level, draft_level


@dataclass(slots=True)
class Thought:
    """What a network makes of some tokens."""

    logits: torch.Tensor
    """For what follows each token, in the target's vocabulary, `[num_tokens, vocab_size]`."""
    features: torch.Tensor | None
    """What it has to be given when it goes on from there, `[num_tokens, dim]`."""


class DraftNetwork(Protocol):
    """Keeps keys and values of its own, in blocks that mirror the target's."""

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot."""

    def is_ready(self, rows: DraftRows) -> torch.Tensor:
        """Returns which rows it knows enough about to draft for, bool `[num_rows]`."""

    def begin(self, rows: DraftRows) -> Thought:
        """Catches up with the verified tokens; returns what follows the last one of each row."""

    def feed(self, rows: DraftRows, level: FedLevel) -> Thought:
        """Goes on from drafts of the rows that `begin` was given."""

    def observe(
        self,
        step: VerifiedStep,
        was_drafted: torch.Tensor,
        fed_path: torch.Tensor,
        num_kept: torch.Tensor,
    ) -> None:
        """Takes in what the target has verified.

        Args:
            step: The target's pass.
            was_drafted: Which rows this network has drafted, bool `[num_rows]`.
            fed_path: Which of the fed nodes each accepted draft was, `[num_rows, width]`.
            num_kept: How many of them, from the first on, were fed, `[num_rows]`.
        """


class LastFeatures:
    """One row per slot and one more, which padding names."""

    def __init__(self, num_slots: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """Takes memory for features of some size; none is known yet."""
        self._features = torch.zeros((num_slots + 1, size), dtype=dtype, device=device)
        self._is_known = torch.zeros(num_slots + 1, dtype=torch.bool, device=device)

    def forget(self, slot: int) -> None:
        """Forgets those of a slot: another request holds it now."""
        self._is_known[slot] = False

    def is_known(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns which slots have some, bool `[num_rows]`."""
        return self._is_known[slots]

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns those of some slots, `[num_rows, size]`; of others anything."""
        return self._features[slots]

    def keep(self, slots: torch.Tensor, features: torch.Tensor, has_emitted: torch.Tensor) -> None:
        """Replaces those of the slots that have emitted something.

        Args:
            slots: `[num_rows]`; padding may name the last row several times.
            features: `[num_rows, size]`.
            has_emitted: bool `[num_rows]`.
        """
        kept = torch.where(has_emitted[:, None], features, self._features[slots])
        self._features.index_copy_(0, slots, kept)
        self._is_known.index_copy_(0, slots, self._is_known[slots] | has_emitted)


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
            used = None if self._shape.is_chain else bits
            level = FedLevel(token_ids, depth, num_fed, used, known.of(parents))
            thought = self._network.feed(rows, level)
            known.add(thought)
            growth.add(self._draft(rows, thought, depth + 1))
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
