"""The training loop of drafters and adapters."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from pickle import UnpicklingError
from statistics import fmean
from types import FrameType
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from optimist_common.errors import SetupError, one_line


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
    constant_share: float = 0.0
    """Of the steps, before the rate falls: a run can be made longer until then."""
    snapshot_steps: int = 100
    """Between two times that the state is saved."""
    bf16: bool = False
    """Products in bfloat16; weights, gradients and losses stay in float32."""

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        rising = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        falling = min(1.0, (1 - step / self.num_steps) / (1 - self.constant_share))
        return self.learning_rate * rising * falling


class Batch(Protocol):
    """What one step learns from."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed, padding included."""


BatchT = TypeVar("BatchT", bound=Batch)

_STEPS_BETWEEN_LINES = 10
_STATE = "state.pt"


class InterruptedRunError(Exception):
    """The run was stopped from outside; its state is saved."""


def run(
    parameters: dict[str, torch.nn.Parameter],
    loss_of: Callable[[BatchT], tuple[Tensor, Tensor]],
    batches: Iterator[BatchT],
    schedule: Schedule,
    directory: Path,
    settings: dict[str, object],
    *,
    resume: bool,
) -> None:
    """Trains parameters in place.

    Args:
        parameters: What is trained, by name.
        loss_of: Returns the loss of a batch, and the share of its first choices that are right.
        batches: Always the same ones, from the first step on.
        schedule: How long and how fast.
        directory: Where the state is kept.
        settings: Of the run; those of a resumed run must be the same.
        resume: Goes on with the state in `directory`.

    Raises:
        SetupError: There is nothing to resume, or it had other settings.
        InterruptedRunError: SIGINT came; the state is saved, and another call can resume.
    """
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=schedule.betas, weight_decay=schedule.weight_decay
    )
    first = _resume(directory, parameters, optimizer, settings) if resume else 0
    started, num_tokens, figures = time.monotonic(), 0, deque[tuple[float, float]](maxlen=20)
    with _interruptible() as stopped:
        for step, batch in zip(range(schedule.num_steps), batches, strict=False):
            if step < first:
                continue
            figures.append(_step(loss_of, batch, optimizer, schedule, step))
            num_tokens += batch.num_tokens
            done = step + 1
            if done % _STEPS_BETWEEN_LINES == 0 or done == schedule.num_steps:
                loss, share = (fmean(each) for each in zip(*figures, strict=True))
                seconds = time.monotonic() - started
                left = timedelta(
                    seconds=round(seconds * (schedule.num_steps - done) / (done - first))
                )
                print(
                    f"step {done}/{schedule.num_steps}  loss {loss:.4f}  first choice right "
                    f"{share:.3f}  {num_tokens / seconds:,.0f} tokens/s  {left} left",
                    file=sys.stderr,
                )
            if stopped or done % schedule.snapshot_steps == 0 or done == schedule.num_steps:
                _save(directory, parameters, optimizer, {"step": done, **settings})
            if stopped:
                raise InterruptedRunError(f"stopped after step {done}; go on with --resume")


def _step(
    loss_of: Callable[[BatchT], tuple[Tensor, Tensor]],
    batch: BatchT,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    step: int,
) -> tuple[float, float]:
    for group in optimizer.param_groups:
        group["lr"] = schedule.rate(step)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with torch.autocast(trained[0].device.type, torch.bfloat16, enabled=schedule.bf16):
        loss, share = loss_of(batch)
    if not torch.isfinite(loss):
        raise SetupError(f"--learning-rate: the loss is not finite at step {step + 1}; lower it")
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(trained, schedule.max_gradient_norm)
    optimizer.step()
    return loss.item(), share.item()


def _save(
    directory: Path,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: dict[str, object],
) -> None:
    """Writes what a run needs to go on; a reader never sees half of it."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"{_STATE}.unfinished"
    tensors = {name: parameter.detach() for name, parameter in parameters.items()}
    saved = {**state, "parameters": tensors, "optimizer": optimizer.state_dict()}
    torch.save(saved, unfinished)
    unfinished.replace(directory / _STATE)


def _resume(
    directory: Path,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    settings: dict[str, object],
) -> int:
    """Puts a saved run into parameters and optimizer; returns the steps that it had."""
    try:
        saved = torch.load(directory / _STATE, weights_only=True)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved["parameters"][name])
        optimizer.load_state_dict(saved["optimizer"])
        step: int = saved["step"]
    except FileNotFoundError:
        raise SetupError(f"--resume: {directory} holds no run; leave --resume out") from None
    except (KeyError, RuntimeError, ValueError, UnpicklingError) as error:
        raise SetupError(f"--resume: {directory} is of another run: {one_line(error)}") from None
    for name, value in settings.items():
        if saved.get(name) != value:
            flag = name.replace("_", "-")
            raise SetupError(f"--{flag}: the run to resume had {saved.get(name)!r}, not {value!r}")
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
