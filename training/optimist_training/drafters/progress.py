"""One line that says how far a training run is."""

import sys
from dataclasses import dataclass, field

_SMOOTHING = 0.9


@dataclass(slots=True)
class Progress:
    """Smoothed figures of a run."""

    num_steps: int
    first_step: int
    started: float
    """Seconds, of any clock; `line` takes the same."""
    num_tokens: int = 0
    _loss: float | None = None
    _share: float | None = None
    _is_terminal: bool = field(default_factory=sys.stderr.isatty)

    def add(self, loss: float, share: float, num_tokens: int) -> None:
        """Notes a step."""
        self.num_tokens += num_tokens
        self._loss = _mix(self._loss, loss)
        self._share = _mix(self._share, share)

    def line(self, step: int, now: float) -> str:
        """Returns the line after a number of steps."""
        seconds = max(now - self.started, 1e-9)
        left = seconds / max(step - self.first_step, 1) * (self.num_steps - step)
        return (
            f"step {step}/{self.num_steps}  loss {self._loss or 0.0:.4f}  "
            f"first draft right {self._share or 0.0:.3f}  "
            f"{self.num_tokens / seconds:,.0f} tokens/s  {_duration(left)} left"
        )

    def show(self, step: int, now: float) -> None:
        """Writes the line to standard error: over the last one on a terminal, else below it."""
        end = "" if self._is_terminal and step < self.num_steps else "\n"
        start = "\r\x1b[K" if self._is_terminal else ""
        print(start + self.line(step, now), end=end, file=sys.stderr, flush=True)


def _mix(before: float | None, value: float) -> float:
    return value if before is None else _SMOOTHING * before + (1 - _SMOOTHING) * value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
