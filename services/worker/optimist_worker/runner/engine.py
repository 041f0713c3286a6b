"""Starts steps on the model's device, one behind the other."""

from dataclasses import dataclass

import torch

from optimist_common.columns import Int32Column
from optimist_worker.core.acceptance.acceptance_rule import AcceptanceRule
from optimist_worker.core.batch.bounds import StepBounds
from optimist_worker.core.batch.logprobs import LogprobPlaces
from optimist_worker.core.batch.slot_table import send
from optimist_worker.core.plan import Admission, PlannedRow, WindowUpdate
from optimist_worker.drafters.drafter import Drafter
from optimist_worker.execution.graphs import MOST_TOKENS, GraphCache
from optimist_worker.execution.stage import Stage, StagedStep
from optimist_worker.execution.stage_masks import StageMasks
from optimist_worker.execution.step import Step
from optimist_worker.execution.stopwatch import CudaStopwatch, HostStopwatch
from optimist_worker.model.feature_tap import FeatureTap
from optimist_worker.model.masks import Masks
from optimist_worker.model.model import Model
from optimist_worker.model.state import DeviceState


class DeviceLostError(Exception):
    """The device computes nothing any more in this process, as after a fault in a kernel."""


@dataclass(slots=True)
class RunningStep:
    """A step that has been started."""

    packed: torch.Tensor
    """On the host; on CUDA not there before `done`."""
    scored: torch.Tensor | None
    """See `StepTensors`; the same."""
    done: torch.cuda.Event | None
    watch: HostStopwatch | CudaStopwatch

    def wait(self) -> Int32Column:
        """Waits for the step; returns what `outputs.pack` has packed.

        Raises:
            RuntimeError: The device reports that something failed.
        """
        if self.done is not None:
            self.done.synchronize()
        packed: Int32Column = self.packed.numpy()
        return packed

    def take_scored(self) -> Int32Column | None:
        """Returns log-probabilities, after `wait`, see `StepTensors`."""
        return None if self.scored is None else self.scored.numpy()


class Engine:
    """Model, state and drafter on one device. All calls take effect in their order."""

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        masks: Masks | StageMasks,
        drafter: Drafter | None = None,
        tap: FeatureTap | None = None,
        rule: AcceptanceRule = AcceptanceRule.COUPLED,
        synthetic_rate: float = 0.0,
        *,
        uses_graphs: bool = True,
        stage: Stage | None = None,
    ) -> None:
        """Puts an engine together.

        Args:
            model: The target.
            state: Its slots.
            masks: Grammars of the slots.
            drafter: Drafts for rows whose window does not.
            tap: Where the target's features come from, if the drafter reads them.
            rule: How drafts are accepted.
            synthetic_rate: Chance that a draft is accepted under the rule `synthetic`.
            uses_graphs: Whether steps are captured as graphs, on CUDA.
            stage: Where it stands in a pipeline that the model is divided among; None: in none.
        """
        self.model, self.state, self.masks = model, state, masks
        self.drafter, self.rule, self.stage = drafter, rule, stage
        self.drafter_us: list[int] = []
        """What the drafter takes by the depth of its drafts, if it was timed."""
        self._step = Step(model, state, drafter, tap, rule, synthetic_rate)
        self._graphs = GraphCache() if state.device.type == "cuda" and uses_graphs else None

    @property
    def runs_by_itself(self) -> bool:
        """Whether a started step goes on while the host does something else."""
        return self.state.device.type == "cuda"

    @property
    def num_stages(self) -> int:
        """Stages that work on a plan each."""
        return 1 if self.stage is None else self.stage.place.num_stages

    def check_device(self) -> None:
        """Raises DeviceLostError if the device has failed for good."""
        if self.runs_by_itself:
            try:
                torch.cuda.synchronize(self.state.device)
            except RuntimeError as error:
                raise DeviceLostError(" ".join(str(error).split())[:300]) from error

    def expected_draft_ns(self, num_drafts: int) -> int:
        """Returns what the drafter probably takes for so many drafts, 0 if it was not timed."""
        if self.drafter is None or not self.drafter_us or not num_drafts:
            return 0
        number = min(num_drafts, self.drafter.max_tokens)
        depth = -(-number * self.drafter.max_depth // self.drafter.max_tokens)
        return 1000 * self.drafter_us[min(depth, len(self.drafter_us)) - 1]

    @torch.inference_mode()
    def admit(self, admission: Admission) -> None:
        """Gives a slot to a request that has no fault."""
        slot, state = admission.slot, self.state
        state.table.admit(admission)
        state.sampling.set(slot, admission.sampling)
        state.windows.clear(slot)
        if self.drafter is not None:
            self.drafter.admit(slot)

    @torch.inference_mode()
    def set_window(self, update: WindowUpdate) -> None:
        """Replaces a slot's window."""
        self.state.windows.set(update)

    @torch.inference_mode()
    def append_blocks(self, rows: list[PlannedRow], num_held: list[int]) -> None:
        """Gives slots their new blocks; `num_held` is how many each has."""
        slots = [row.slot for row in rows]
        self.state.table.append_blocks(slots, [row.new_blocks for row in rows], num_held)

    @torch.inference_mode()
    def start(
        self,
        columns: list[list[int]],
        bounds: StepBounds,
        wanted: LogprobPlaces | None = None,
    ) -> RunningStep | StagedStep:
        """Starts a step.

        Args:
            columns: Slots, known tokens and most drafts of the rows as planned.
            bounds: What is known of them.
            wanted: Which log-probabilities are wanted, on the host; None for none.

        Raises:
            RuntimeError, ValueError, IndexError: PyTorch refuses it.
            GroupError: Another stage is gone.
        """
        table, number = self.state.table, bounds.num_rows
        if not table.reads_sizes:
            bounds = bounds.rounded(self.state.sizes.max_num_batched_tokens)
            padding = bounds.num_rows - number
            fillers = (table.num_slots, 0, 0)
            columns = [
                column + [filler] * padding for column, filler in zip(columns, fillers, strict=True)
            ]
        rows = send(torch.tensor(columns, dtype=torch.int64), self.state.device)
        if self.stage is not None:
            places = None if wanted is None else wanted.to(self.state.device)
            return self.stage.start(self._step, rows, bounds, number, self.masks, places)
        if self.runs_by_itself:
            # Streams and events are those of the thread's current device.
            with torch.cuda.device(self.state.device):
                return self._start_cuda(rows, bounds, number, wanted)
        watch = HostStopwatch()
        packed, scored = self._step.run(rows, bounds, watch, self.masks, wanted)
        return RunningStep(packed[:number], scored, None, watch)

    def _start_cuda(
        self, rows: torch.Tensor, bounds: StepBounds, number: int, wanted: LogprobPlaces | None
    ) -> RunningStep:
        """Starts a step whose first `number` rows are wanted; the others are padding."""
        # What log-probabilities are wanted of is different in every step.
        is_plain = wanted is None and not bounds.has_grammar and bounds.num_tokens <= MOST_TOKENS
        graphs = self._graphs if is_plain else None
        watch = CudaStopwatch(is_on=graphs is None)
        scored: torch.Tensor | None = None

        def run(rows: torch.Tensor) -> torch.Tensor:
            return self._step.run(rows, bounds, watch, self.masks).packed

        if graphs is not None:
            packed = graphs.run(bounds, rows, run)
        else:
            places = None if wanted is None else wanted.to(self.state.device)
            packed, scored = self._step.run(rows, bounds, watch, self.masks, places)
        packed, scored = _fetch(packed), None if scored is None else _fetch(scored)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return RunningStep(packed[:number], scored, done, watch)


def _fetch(tensor: torch.Tensor) -> torch.Tensor:
    """Starts to copy a tensor to the host."""
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return on_host.copy_(tensor, non_blocking=True)
