"""What the training loop needs to know of a drafter."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from optimist_training.drafters.target import Lesson


class Trainee(Protocol):
    """A drafter that learns from a target."""

    layers: tuple[int, ...] | None
    """Whose outputs of the target it reads; None: the last hidden state."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what is trained, by name."""

    def loss(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Returns the loss, and the share of its first drafts that are the target's tokens."""

    def agreement(self, lesson: Lesson, depth: int) -> Tensor:
        """Tells which drafts are the target's tokens, bool `[batch, length, depth]`.

        Draft j at position p is for position p + 2 + j: the target itself says the token at p + 1.
        """

    def save(self, directory: Path) -> None:
        """Writes what the worker loads."""


def soft_loss(logits: Tensor, taught: Tensor) -> Tensor:
    """Returns the mean cross-entropy to the target's distribution, both `[N, vocab_size]`."""
    likely = torch.softmax(taught.float(), dim=-1)
    return -(likely * torch.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def ahead(tensor: Tensor, distance: int) -> Tensor:
    """Returns what stands `distance` places behind, `[batch, length, ...]`; zeros past the end."""
    shifted = torch.zeros_like(tensor)
    length = tensor.shape[1]
    if distance < length:
        shifted[:, : length - distance] = tensor[:, distance:]
    return shifted
