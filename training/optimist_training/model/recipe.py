"""How the bundled model is made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Settings of one run; the defaults make the bundled model."""

    seed: int = 0
    """Of the initial weights, the order of the edits and the tokenizer's instructions."""
    num_steps: int = 100
    edits_per_step: int = 8
    learning_rate: float = 1e-3
    """At the first step; it falls linearly to zero."""
    betas: tuple[float, float] = (0.9, 0.98)
    changed_weight: float = 3.0
    """Of tokens the edit changes, and of the token behind them, in the loss; others weigh 1."""
