"""What runs the passes of steps: this device alone, or together with other processes."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import torch

from optimist_common.columns import Int32Column
from optimist_common.errors import one_line
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.core.batch.logprobs import LogprobTargets
from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.core.transfers import receive
from optimist_worker.execution.graphs import MOST_TOKENS, CudaCapture, GraphCache
from optimist_worker.execution.step import Step, Stopwatch
from optimist_worker.grammar.masks import Masks


class DeviceLostError(Exception):
    """The device computes nothing any more in this process, as after a fault in a kernel."""


class StepInput(NamedTuple):
    """What a step is launched with."""

    columns: torch.Tensor
    """Of the plan, see `Step.run`; on the device."""
    bounds: StepBounds
    num_rows: int
    """How many of the rows are not padding."""
    wanted: LogprobTargets | None
    """Which log-probabilities are wanted, on the host; None for none."""


class FinishedStep(NamedTuple):
    """What a step has come to, on the host."""

    packed: Int32Column
    """What `results.pack` has packed."""
    scored: Int32Column | None
    """Log-probabilities, see `StepTensors`."""
    draft_ns: int
    """Time that drafting took; 0 if nothing was timed."""


class RunningStep(Protocol):
    """A step that has been launched."""

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return at once; of the oldest step only."""

    def wait(self) -> FinishedStep:
        """Waits for the step; raises RuntimeError if the device reports that something failed."""


class Executor:
    """Launches steps; where other processes hold parts of the model, it has them do the same.

    All calls take effect in their order. Steps are waited for in the order of their launches.
    """

    num_stages = 1
    """Stages that work on a plan each."""
    most_plans = 1
    """Plans that are launched at most before the oldest one is waited for."""
    uses_graphs = False
    """Whether steps run as CUDA graphs where they can be captured."""
    settles_late = False
    """Whether the state moves on only when a step is waited for."""

    def __init__(self, device: torch.device, masks: Masks) -> None:
        """Runs on a device, with the grammars of all slots."""
        self.device, self.masks = device, masks

    def on_step_end(self, wake: Callable[[], None] | None) -> bool:
        """Has something called, in any thread, when a step has ended; None ends that.

        Returns:
            Whether it will be. Where steps are over when they have been launched it is not.
        """
        return False

    def release_all(self) -> None:
        """Has the other processes free every slot."""

    def prepare(self, plan: Plan) -> None:
        """Has the other processes launch a plan."""

    def fit(self, size: StepBounds) -> StepBounds:
        """Returns the size that a step of a size is to run in; it is no smaller."""
        return size

    def launch(self, step: StepInput) -> RunningStep:
        """Launches a step; raises GroupError if another process is gone, or what PyTorch raises."""
        raise NotImplementedError

    def finish(self, result: StepResult) -> None:
        """Has the other processes finish the oldest plan and compare its result."""

    def end(self) -> None:
        """Has the other processes end."""

    def check_device(self) -> None:
        """Raises DeviceLostError if the device has failed for good."""
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as error:
                raise DeviceLostError(one_line(error)) from error

    def check_failure(self, error: Exception) -> None:
        """Raises unless what keeps a request or a step from starting ends these requests only."""
        self.check_device()


class LocalExecutor(Executor):
    """Runs whole steps on this process's device, on CUDA as graphs where they can be captured."""

    def __init__(
        self, step: Step, masks: Masks, device: torch.device, *, uses_graphs: bool = True
    ) -> None:
        super().__init__(device, masks)
        self._step = step
        self._graphs = None
        if device.type == "cuda":
            self.uses_graphs = uses_graphs
            with torch.cuda.device(device):
                self._graphs = GraphCache(CudaCapture()) if uses_graphs else None
            # One to run, and one to go on with at once.
            self.most_plans = 2
            self._ends = _EndWatch()

    def on_step_end(self, wake: Callable[[], None] | None) -> bool:
        """Has something called when a step has ended, on CUDA."""
        if self.device.type != "cuda":
            return False
        self._ends.wake = wake
        return True

    def fit(self, size: StepBounds) -> StepBounds:
        """Returns the size of a captured step that holds a size, if there is one."""
        graphs = self._graphs_for(size)
        return size if graphs is None else graphs.fit(size)

    def _graphs_for(self, size: StepBounds) -> GraphCache | None:
        may_capture = not size.has_grammar and size.num_tokens <= MOST_TOKENS
        return self._graphs if may_capture and self.uses_graphs else None

    def launch(self, step: StepInput) -> RunningStep:
        """Launches a step; on CUDA the host does not wait for it."""
        if self.device.type == "cuda":
            # Streams and events are those of the thread's current device.
            with torch.cuda.device(self.device):
                return self._launch_cuda(step)
        watch = Stopwatch()
        packed, scored = self._step.run(step.columns, step.bounds, watch, self.masks, step.wanted)
        return _LocalStep(packed[: step.num_rows], scored, None, watch)

    def _launch_cuda(self, step: StepInput) -> "_LocalStep":
        rows, bounds, number, wanted = step
        # What log-probabilities are wanted of is different in every step.
        graphs = self._graphs_for(bounds) if wanted is None else None
        watch = Stopwatch(is_cuda=True, is_on=graphs is None)
        scored: torch.Tensor | None = None

        def run(rows: torch.Tensor) -> torch.Tensor:
            return self._step.run(rows, bounds, watch, self.masks).packed

        if graphs is not None:
            packed = graphs.run(bounds, rows, run)
        else:
            targets = None if wanted is None else wanted.to(self.device)
            packed, scored = self._step.run(rows, bounds, watch, self.masks, targets)
        packed, scored = receive(packed), None if scored is None else receive(scored)
        # Two threads wait for it, which must not take the cores from each other.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        self._ends.add(done)
        return _LocalStep(packed[:number], scored, done, watch)


@dataclass(slots=True)
class _LocalStep:
    """A step on this device. On CUDA its tensors, on the host, are not there before `done`."""

    packed: torch.Tensor
    scored: torch.Tensor | None
    done: torch.cuda.Event | None
    watch: Stopwatch

    @property
    def is_over(self) -> bool:
        return self.done is None or bool(self.done.query())  # type: ignore[no-untyped-call]

    def wait(self) -> FinishedStep:
        if self.done is not None:
            self.done.synchronize()
        scored = None if self.scored is None else self.scored.numpy()
        return FinishedStep(self.packed.numpy(), scored, self.watch.total_ns())


class _EndWatch:
    """A thread that waits for the ends of steps, in the order of their launches."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None
        self._steps: SimpleQueue[torch.cuda.Event] = SimpleQueue()
        threading.Thread(target=self._watch, name="step ends", daemon=True).start()

    def add(self, done: torch.cuda.Event) -> None:
        """Watches a step, by the event after it."""
        self._steps.put(done)

    def _watch(self) -> None:
        while True:
            # Who waits for the step itself is given the error.
            with suppress(RuntimeError):
                self._steps.get().synchronize()
            if (wake := self.wake) is not None:
                wake()
