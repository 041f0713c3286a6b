"""What drafts token by token is asked for: a model of its own, or a head on the target."""

from dataclasses import dataclass
from typing import Protocol

import torch

from optimist_worker.drafters.drafter import DraftRows, VerifiedStep


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

    def feed(
        self,
        rows: DraftRows,
        token_ids: torch.Tensor,
        depth: int,
        num_fed: int,
        bits: torch.Tensor | None,
        features: torch.Tensor | None,
    ) -> Thought:
        """Goes on from drafts.

        Args:
            rows: The rows, as in `begin`.
            token_ids: Drafts of one level, `[num_rows, num_nodes]`.
            depth: Their level; 1 is the first.
            num_fed: Nodes per row that were fed before.
            bits: Their ancestors among all that were fed, themselves included,
                `[num_rows, num_nodes]`; None for chains.
            features: Those that came with each one's parent, `[num_rows * num_nodes, dim]`.
        """

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
