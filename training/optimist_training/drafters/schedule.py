"""Settings of one training run of a drafter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long, how much at a time, and how fast."""

    num_steps: int
    batch_tokens: int
    learning_rate: float
    """At its highest: it rises over the first steps and then falls linearly to zero."""
    warmup_steps: int = 20
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        rising = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        return self.learning_rate * rising * (1 - step / self.num_steps)
