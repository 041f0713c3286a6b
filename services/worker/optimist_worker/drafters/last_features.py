"""The features that each slot's last token came from, for heads that go on from there."""

import torch


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
