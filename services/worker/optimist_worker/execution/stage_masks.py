"""Grammars in stages that do not choose tokens."""

import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import Admission
from optimist_worker.core.ragged import Ragged
from optimist_worker.model.masks import Masks


class StageMasks:
    """Refuses the grammars that the last stage refuses, and follows none.

    How far a grammar can be followed is the last stage's to say, see `StageVerdict.faults`.
    """

    def __init__(self, masks: Masks) -> None:
        """Tries grammars with those of a model."""
        self._masks = masks
        self._faults: dict[int, str] = {}

    def open(self, admission: Admission) -> str | None:
        """Returns what is wrong with the grammar of a request, or None."""
        error = self._masks.open(admission)
        self._masks.close(admission.slot)
        return error

    def close(self, slot: int) -> None:
        """Forgets a slot."""

    def tell(self, faults: dict[int, str]) -> None:
        """Notes which grammars of the plan to be settled can be followed no further."""
        self._faults = faults

    def commit(self, slot: int, token_ids: list[int]) -> str | None:
        """Returns why a slot's grammar cannot be followed further, or None."""
        return self._faults.get(slot)

    def allowed(self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> torch.Tensor | None:
        """Restricts nothing, because nothing is chosen here."""
        return None
