"""Medusa heads that learn the target's tokens further ahead."""

from pathlib import Path

import torch
from torch import Tensor

from optimist_training.drafters.heads import save_medusa
from optimist_training.drafters.target import Lesson, Target, ahead, right_share, soft_loss
from optimist_worker.drafters.heads.medusa import MedusaHeads, load_medusa

_DECAY = 0.8
"""Weight of a head in the loss, relative to that of the head before (Medusa-1)."""


class MedusaTrainee:
    """Trains heads on the last hidden states of a target."""

    layers: tuple[int, ...] | None = None

    def __init__(self, target: Target, heads: MedusaHeads, dtype: torch.dtype) -> None:
        """Takes heads to train.

        Args:
            target: Their target.
            heads: As `new_heads` or `load_medusa` return them.
            dtype: To store them in.
        """
        self.heads, self._dtype = heads.to(target.model.device).requires_grad_(True), dtype

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what is trained, by name."""
        return dict(self.heads.named_parameters())

    def loss(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Returns the heads' weighted loss, and the share of right tokens of the first head."""
        logits = self.heads.known_logits(lesson.hidden[lesson.wanted])
        token_ids = self.heads.target_ids
        losses, weights = logits.new_zeros(()), 0.0
        share = logits.new_zeros(())
        for head in range(self.heads.num_heads):
            known = ahead(lesson.wanted, head + 1)[lesson.wanted]
            taught = ahead(lesson.logits, head + 1)[lesson.wanted][known]
            if not len(taught):
                continue
            drafted = logits[head][known]
            losses = losses + _DECAY**head * soft_loss(drafted, taught, token_ids)
            weights += _DECAY**head
            if head == 0:
                said = ahead(lesson.said, 1)[lesson.wanted][known]
                share = right_share(drafted, said, token_ids)
        return losses / max(weights, 1.0), share.detach()

    def agreement(self, lesson: Lesson, depth: int) -> Tensor:
        """Returns which heads say the target's tokens; none beyond the last head."""
        result = torch.zeros(*lesson.said.shape, depth, dtype=torch.bool)
        drafted = self.heads(lesson.hidden.flatten(0, 1)).argmax(-1)
        for head in range(min(depth, self.heads.num_heads)):
            tokens = drafted[head].view_as(lesson.said)
            result[:, :, head] = tokens == ahead(lesson.said, head + 1)
        return result

    def save(self, directory: Path) -> None:
        """Writes what the worker loads."""
        save_medusa(self.heads, directory, self._dtype)


def new_heads(
    target: Target,
    num_heads: int,
    num_layers: int,
    token_ids: list[int] | None = None,
    *,
    share: bool,
    blank: bool,
) -> MedusaHeads:
    """Returns heads whose layers add nothing yet.

    Args:
        target: Their target.
        num_heads: How many tokens beyond the target's own.
        num_layers: Residual layers of each head.
        token_ids: The tokens that they can draft; None: all.
        share: One output matrix for all heads.
        blank: Outputs are zero; else the target's output matrix, which is where to start if the
            states hold more than the next token (Medusa-1).
    """
    output = target.model.module.get_output_embeddings().weight
    known = None if token_ids is None else torch.tensor(token_ids, device=output.device)
    heads = MedusaHeads(
        num_heads,
        num_layers,
        output.shape[1],
        output.shape[0],
        share_lm_head=share,
        target_ids=known,
    )
    if not blank:
        rows = output if known is None else output[known]
        with torch.no_grad():
            heads.lm_head.copy_(rows.expand_as(heads.lm_head))
    return heads.to(output.dtype)


def known_heads(target: Target, name: str) -> MedusaHeads:
    """Loads heads to go on with."""
    model = target.model
    output = model.module.get_output_embeddings().weight
    return load_medusa(name, output.shape[1], output.shape[0], model.dtype, model.device, output)
