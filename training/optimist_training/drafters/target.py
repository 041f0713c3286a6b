"""The target as the teacher of a drafter: its features and what it says, for whole sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from optimist_training.data.examples import Batch, Example
from optimist_worker.model.model import Model, load_model


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch and what the target makes of it."""

    token_ids: torch.Tensor
    """`[batch, length]`."""
    wanted: torch.Tensor
    """Bool `[batch, length]`: the token after this one belongs to the completion."""
    hidden: torch.Tensor
    """Last hidden states after the final norm, `[batch, length, hidden_size]`."""
    features: torch.Tensor
    """Outputs of the layers asked for side by side, else `hidden`."""
    logits: torch.Tensor
    """Of the token after each, `[batch, length, vocab_size]`."""
    said: torch.Tensor
    """The target's greedy token after each, `[batch, length]`."""


class Target:
    """A frozen model that teaches."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        """Loads a model as the worker does.

        Raises:
            SetupError: It cannot be loaded.
        """
        self.model: Model = load_model(name, "float32", device)
        self.model.module.set_attn_implementation("sdpa")
        self.config: Any = self.model.module.config.get_text_config()
        self.hidden_size: int = self.model.module.get_output_embeddings().weight.shape[1]

    @torch.no_grad()
    def teach(self, batch: Batch, layers: Sequence[int] | None = None) -> Lesson:
        """Runs the target over a batch.

        Args:
            batch: The sequences.
            layers: Whose outputs are the features; None: the last hidden state.
        """
        token_ids = batch.token_ids.to(self.model.device)
        module = self.model.module
        output = module.base_model(
            input_ids=token_ids, use_cache=False, output_hidden_states=layers is not None
        )
        hidden = output.last_hidden_state
        features = hidden
        if layers is not None:
            features = torch.cat([output.hidden_states[layer + 1] for layer in layers], dim=-1)
        logits = module.get_output_embeddings()(hidden)
        wanted = batch.wanted.to(self.model.device)
        return Lesson(token_ids, wanted, hidden, features, logits, logits.argmax(-1))

    @torch.no_grad()
    def answer(self, examples: list[Example], max_new_tokens: int) -> list[Example]:
        """Returns the examples with the target's own greedy completions instead of theirs."""
        answered = []
        for example in examples:
            prompt = example.token_ids[: example.num_prompt_tokens]
            output = self.model.module.generate(
                torch.tensor([prompt], device=self.model.device),
                do_sample=False,
                max_new_tokens=max_new_tokens,
            )
            answered.append(Example(output[0].tolist(), len(prompt)))
        return answered


class Trainee(Protocol):
    """A drafter that learns from a target."""

    layers: tuple[int, ...] | None
    """Whose outputs of the target it reads; None: the last hidden state."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what is trained, by name."""

    def loss(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Returns the loss, and the share of its first drafts that are the target's tokens."""

    def agreement(self, lesson: Lesson, depth: int) -> Tensor:
        """Returns which drafts are the target's tokens, bool `[batch, length, depth]`.

        Draft j at position p is for position p + 2 + j: the target itself says the token at p + 1.
        """

    def save(self, directory: Path) -> None:
        """Writes what the worker loads."""


def soft_loss(logits: Tensor, taught: Tensor, token_ids: Tensor | None = None) -> Tensor:
    """Returns the mean cross-entropy to the target's distribution.

    Args:
        logits: The drafter's, `[N, num_known]`.
        taught: The target's, `[N, vocab_size]`.
        token_ids: The tokens that the drafter knows, int64 `[num_known]`; None: all. Where the
            target says another, there is no loss.
    """
    if token_ids is not None:
        is_known = torch.isin(taught.argmax(-1), token_ids)
        logits, taught = logits[is_known], taught[is_known].index_select(-1, token_ids)
    if not len(logits):
        return logits.sum()
    likely = torch.softmax(taught.float(), dim=-1)
    return -(likely * torch.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def right_share(logits: Tensor, said: Tensor, token_ids: Tensor | None) -> Tensor:
    """Returns the share of the drafter's first choices that the target said, `[N]` tokens."""
    drafted = logits.argmax(-1)
    if token_ids is not None:
        drafted = token_ids[drafted]
    return (drafted == said).float().mean()


def ahead(tensor: Tensor, distance: int) -> Tensor:
    """Returns what is `distance` positions later, `[batch, length, ...]`; zeros past the end."""
    shifted = torch.zeros_like(tensor)
    length = tensor.shape[1]
    if distance < length:
        shifted[:, : length - distance] = tensor[:, distance:]
    return shifted
