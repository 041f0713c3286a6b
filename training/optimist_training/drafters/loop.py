"""The training loop of all drafters."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from optimist_common.errors import SetupError
from optimist_training.data.examples import Batch
from optimist_training.drafters.snapshot import load_snapshot, save_snapshot
from optimist_training.drafters.target import Target, Trainee


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
    bf16: bool = False
    """Products in bfloat16; weights, gradients and losses stay in float32."""

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        rising = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        return self.learning_rate * rising * (1 - step / self.num_steps)


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


_STEPS_BETWEEN_LINES = 10
_STEPS_BETWEEN_SNAPSHOTS = 100


class InterruptedRunError(Exception):
    """The run was stopped from outside; its state is saved."""


def run(
    trainee: Trainee,
    target: Target,
    batches: Iterator[Batch],
    schedule: Schedule,
    directory: Path,
    settings: dict[str, object],
    *,
    resume: bool,
) -> int:
    """Trains a drafter in place; returns the number of tokens it has seen in this call.

    Args:
        trainee: The drafter.
        target: What it learns from.
        batches: Always the same ones, from the first step on.
        schedule: How long and how fast.
        directory: Where the state is kept.
        settings: Of the run; those of a resumed run must be the same.
        resume: Goes on with the state in `directory`.

    Raises:
        SetupError: There is nothing to resume, or it had other settings.
        InterruptedRunError: SIGINT came; the state is saved, and another call can resume.
    """
    parameters = trainee.parameters()
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=schedule.betas, weight_decay=schedule.weight_decay
    )
    first = _resume(directory, parameters, optimizer, settings) if resume else 0
    progress = Progress(schedule.num_steps, first, time.monotonic())
    with _interruptible() as stopped:
        for step, batch in zip(range(schedule.num_steps), batches, strict=False):
            if step < first:
                continue
            loss, share = _step(trainee, target, batch, optimizer, schedule, step)
            progress.add(loss, share, batch.token_ids.numel())
            done = step + 1
            if done % _STEPS_BETWEEN_LINES == 0 or done == schedule.num_steps:
                progress.show(done, time.monotonic())
            if stopped or done % _STEPS_BETWEEN_SNAPSHOTS == 0 or done == schedule.num_steps:
                save_snapshot(directory, parameters, optimizer, {"step": done, **settings})
            if stopped:
                raise InterruptedRunError(f"stopped after step {done}; go on with --resume")
    return progress.num_tokens


def _step(
    trainee: Trainee,
    target: Target,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    step: int,
) -> tuple[float, float]:
    for group in optimizer.param_groups:
        group["lr"] = schedule.rate(step)
    with torch.autocast(target.model.device.type, torch.bfloat16, enabled=schedule.bf16):
        loss, share = trainee.loss(target.teach(batch, trainee.layers))
    if not torch.isfinite(loss):
        raise SetupError(f"--learning-rate: the loss is not finite at step {step + 1}; lower it")
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(trained, schedule.max_gradient_norm)
    optimizer.step()
    return loss.item(), share.item()


def _resume(
    directory: Path,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    settings: dict[str, object],
) -> int:
    state = load_snapshot(directory, parameters, optimizer)
    for name, value in settings.items():
        if state.get(name) != value:
            flag = name.replace("_", "-")
            raise SetupError(f"--{flag}: the run to resume had {state.get(name)!r}, not {value!r}")
    step: int = state["step"]
    return step


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Yields a list that SIGINT fills, so that a step is never cut in two."""
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
