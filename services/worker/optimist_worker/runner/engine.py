"""Model, state and drafter of a worker, and what runs its steps."""

import torch

from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.batch.bounds import StepBounds
from optimist_worker.core.batch.logprobs import LogprobPlaces
from optimist_worker.core.batch.slot_table import send
from optimist_worker.core.plan import Admission, PlannedRow, WindowUpdate
from optimist_worker.drafters.drafter import Drafter
from optimist_worker.execution.executor import Executor, RunningStep
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model


class Engine:
    """Model, state and drafter on one device. All calls take effect in their order."""

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        executor: Executor,
        drafter: Drafter | None = None,
        rule: AcceptanceRule = AcceptanceRule.COUPLED,
    ) -> None:
        """Puts an engine together.

        Args:
            model: The target.
            state: Its slots.
            executor: Runs the steps.
            drafter: Drafts for rows whose window does not.
            rule: How drafts are accepted.
        """
        self.model, self.state, self.executor = model, state, executor
        self.masks, self.drafter, self.rule = executor.masks, drafter, rule
        self.drafter_us: list[int] = []
        """What the drafter takes by the depth of its drafts, if it was timed."""

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
    def launch(
        self,
        columns: list[list[int]],
        bounds: StepBounds,
        wanted: LogprobPlaces | None = None,
    ) -> RunningStep:
        """Launches a step.

        Args:
            columns: Slots, known tokens and most drafts of the rows as planned.
            bounds: What is known of them.
            wanted: Which log-probabilities are wanted, on the host; None for none.

        Raises:
            RuntimeError, ValueError, IndexError: PyTorch refuses it.
            GroupError: Another process is gone.
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
        return self.executor.launch(rows, bounds, number, wanted)
