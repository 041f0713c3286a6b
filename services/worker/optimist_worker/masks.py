"""Which tokens the grammars of a step's rows allow behind each of their drafts."""

import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import Admission
from optimist_worker.core.ragged import Ragged
from optimist_worker.model import Model


class Masks:
    """The grammars of all slots.

    They are followed on the host, so a step with one is waited for before the next is started.
    """

    def __init__(self, model_name: str, model: Model) -> None:
        """Sets up without any grammar; the tokenizer is read when the first one comes."""

    def open(self, admission: Admission) -> str | None:
        """Starts a slot's grammar; returns what is wrong with it, or None."""
        return "grammar: no tokenizer"

    def close(self, slot: int) -> None:
        """Forgets a slot's grammar."""

    def commit(self, slot: int, token_ids: list[int]) -> None:
        """Moves a slot's grammar on by what was emitted."""

    def allowed(self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> torch.Tensor | None:
        """Returns what may come behind each node, bool `[num_logits, vocab_size]`; None: all."""
        return None
