"""Runs plans: which requests hold slots, and what becomes of each row."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from optimist_common.columns import Int32Column
from optimist_common.drafts import PREDICTION, DraftSource
from optimist_common.errors import one_line
from optimist_worker.core.acceptance.choice import CHOOSE
from optimist_worker.core.acceptance.verdict import AcceptanceRule, RowFailure
from optimist_worker.core.batch.host_view import HeldSlot, StepBounds, find_bounds, find_fault, hold
from optimist_worker.core.batch.logprobs import (
    LogprobTargets,
    WantedLogprobs,
    find_targets,
    find_wanted,
    has_nan,
    read_logprobs,
)
from optimist_worker.core.batch.results import Outputs, collect_result, no_outputs, unpack
from optimist_worker.core.batch.step_sizes import StepSizes
from optimist_worker.core.plan import (
    Admission,
    Plan,
    PlanError,
    PlannedRow,
    StepResult,
    WindowUpdate,
)
from optimist_worker.core.transfers import send
from optimist_worker.drafters.guarded import GuardedDrafter
from optimist_worker.execution.executor import Executor, RunningStep, StepInput
from optimist_worker.execution.graphs import MOST_TOKENS
from optimist_worker.execution.group import GroupError
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model


class Engine:
    """Model, state and drafter on one device. All calls take effect in their order."""

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        executor: Executor,
        drafter: GuardedDrafter | None = None,
        rule: AcceptanceRule = AcceptanceRule.COUPLED,
    ) -> None:
        self.model, self.state, self.executor = model, state, executor
        self.masks, self.drafter = executor.masks, drafter
        self.drafter_us: list[int] = []
        """What the drafter takes by the depth of its drafts, if it was timed."""
        has_network = drafter is not None and drafter.source is not DraftSource.NGRAM
        # Drafters with a network and the rule of rejection cut in plain PyTorch.
        is_by_kernel = (
            rule is AcceptanceRule.COUPLED
            and not has_network
            and CHOOSE.kernel_for(torch.empty(0, dtype=model.dtype, device=model.device))
        )
        widest_cut = model.vocab_size if is_by_kernel else None
        self.sizes = StepSizes(state.sizes.max_num_batched_tokens, widest_cut, has_network)

    def expected_draft_ns(self, num_drafts: int) -> int:
        """Returns what the drafter probably takes for so many drafts, 0 if it was not timed."""
        if self.drafter is None or not self.drafter_us or not num_drafts:
            return 0
        number = min(num_drafts, self.drafter.max_tokens)
        depth = -(-number * self.drafter.max_depth // self.drafter.max_tokens)
        return 1000 * self.drafter_us[min(depth, len(self.drafter_us)) - 1]

    @torch.inference_mode()
    def launch(
        self, columns: list[list[int]], bounds: StepBounds, wanted: LogprobTargets | None = None
    ) -> RunningStep:
        """Launches a step; raises what `Executor.launch` does.

        The columns are slots, known tokens and most drafts of the rows as planned. Wanted
        log-probabilities are on the host.
        """
        if not self.state.table.reads_sizes:
            bounds = self.sizes.size_of(bounds)
            if wanted is None:
                bounds = self.executor.fit(bounds)
        return self._launch(columns, bounds, wanted)

    def usual_sizes(self) -> Iterator[StepBounds]:
        """Goes through the sizes of usual steps that can be captured, see `StepSizes.at_start`."""
        has_drafter, most_rows = self.drafter is not None, self.state.sizes.max_num_seqs
        return self.sizes.at_start(MOST_TOKENS, most_rows, has_drafter=has_drafter)

    @torch.inference_mode()
    def run_padding(self, size: StepBounds) -> None:
        """Runs a step of a size without any row, and waits for it; raises what `launch` does."""
        self._launch([[], [], []], size, None).wait()

    def _launch(
        self, columns: list[list[int]], bounds: StepBounds, wanted: LogprobTargets | None
    ) -> RunningStep:
        number, table = len(columns[0]), self.state.table
        padding = bounds.num_rows - number
        fillers = (table.num_slots, 0, 0)
        columns = [
            column + [filler] * padding for column, filler in zip(columns, fillers, strict=True)
        ]
        rows = send(torch.tensor(columns, dtype=torch.int64), self.state.device)
        return self.executor.launch(StepInput(rows, bounds, number, wanted))


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LaunchedPlan:
    """A plan whose step has been started."""

    plan: Plan
    rows: dict[int, HeldSlot]
    """The rows that run, by slot, in the plan's order."""
    idle: dict[int, int]
    """Lengths of those that do not, by slot, where it holds a request."""
    errors: dict[int, str]
    """Why they do not, by slot."""
    step: RunningStep | None
    """None if no row runs."""
    expected_draft_ns: int = 0
    """What the drafter probably takes."""
    num_unseen: list[int] = field(default_factory=list)
    """What the drafter had not seen of each row before the step, `[num_rows]`."""
    wanted: list[WantedLogprobs] = field(default_factory=list)
    """Of which tokens log-probabilities are wanted."""
    later_windows: list[tuple[int, WindowUpdate]] = field(default_factory=list)
    """Windows that newer plans have brought for its rows before they moved on, with the numbers of
    these plans; they take effect after it."""

    @property
    def has_grammar(self) -> bool:
        """Whether its tokens decide what may come next."""
        return any(held.has_grammar for held in self.rows.values())


class Runner:
    """Owns the slots. Not thread-safe: plans are launched and collected in turn."""

    def __init__(self, engine: Engine) -> None:
        """Runs plans on an engine."""
        self.engine = engine
        self._slots: dict[int, HeldSlot] = {}
        self._unsettled: dict[int, LaunchedPlan] = {}
        """Launched plans by their slots, if these move on only when they are collected."""

    def release_all(self) -> None:
        """Frees every slot."""
        self.engine.executor.release_all()
        for slot in list(self._slots):
            self._release(slot)

    def execute(self, plan: Plan) -> StepResult:
        """Runs one plan; see `launch`."""
        return self.collect(self.launch(plan))

    def launch(self, plan: Plan) -> LaunchedPlan:
        """Starts one plan; on a GPU the host does not wait for it.

        Raises PlanError if it admits to a slot that is taken.
        """
        executor = self.engine.executor
        executor.prepare(plan)
        for released in plan.released_slots:
            self._release(released)
        self._admit_all(plan.admissions)
        windows: list[WindowUpdate] = []
        for window in plan.windows:
            if (unsettled := self._unsettled.get(window.slot)) is not None:
                unsettled.later_windows.append((plan.sequence, window))
            else:
                windows.append(window)
        self._set_windows(plan.sequence, windows)
        launched = LaunchedPlan(plan, {}, {}, {}, None)
        rows = self._find_rows(launched)
        if rows:
            try:
                self._start(launched, rows)
            except Exception as error:
                # Whatever PyTorch or Triton refuses, memory included, ends these requests only.
                executor.check_failure(error)
                self._fail(launched, error)
        if executor.settles_late:
            self._unsettled.update(dict.fromkeys(launched.rows, launched))
        return launched

    def collect(self, launched: LaunchedPlan) -> StepResult:
        """Waits for a plan and returns what came of it."""
        outputs, scored, draft_ns = None, None, 0
        for slot in launched.rows if self._unsettled else ():
            self._unsettled.pop(slot, None)
        if launched.step is not None:
            try:
                packed, scored, draft_ns = launched.step.wait()
                outputs = unpack(packed)
                # Inside a captured step nothing is timed.
                draft_ns = draft_ns or launched.expected_draft_ns
            except GroupError:
                raise
            except Exception as error:
                self._fail(launched, error)
        if outputs is None:
            outputs = no_outputs()
        self._note(launched, outputs)
        for sequence, window in launched.later_windows:
            self._set_windows(sequence, [window])
        logprobs = [] if scored is None else read_logprobs(launched.wanted, scored, outputs)
        for row in logprobs:
            if has_nan(row):
                launched.errors.setdefault(row.slot, "the model's logits are not finite")
        plan, slots, errors = launched.plan, list(launched.rows), launched.errors
        result = collect_result(plan, slots, outputs, errors, launched.idle, draft_ns, logprobs)
        self.engine.executor.finish(result)
        return result

    @torch.inference_mode()
    def _set_windows(self, sequence: int, windows: Sequence[WindowUpdate]) -> None:
        """Sets windows together, of which the last of each slot counts."""
        by_slot = {window.slot: window for window in windows}
        # A slot may have been given back since the window was made; then it has no use.
        held = [(self._slots.get(slot), window) for slot, window in by_slot.items()]
        wanted = [(one, window) for one, window in held if one is not None and one.error is None]
        if not wanted:
            return
        try:
            self.engine.state.windows.set([window for _, window in wanted])
        except Exception as failure:
            if len(wanted) > 1:
                # What fails for one costs the others nothing.
                for _, window in wanted:
                    self._set_windows(sequence, [window])
                return
            holder = wanted[0][0]
            holder.error = self._refuse(holder, "its window cannot be set", failure)
            return
        for holder, window in wanted:
            holder.has_window = len(window.token_ids) > 0
            holder.has_tree = bool(window.parents)
            holder.window_sequence = sequence

    def _release(self, slot: int) -> None:
        held = self._slots.pop(slot, None)
        if held is not None and held.has_grammar:
            self.engine.masks.close(slot)

    @torch.inference_mode()
    def _admit_all(self, admissions: Sequence[Admission]) -> None:
        try:
            for admission in admissions:
                self._admit(admission)
        finally:
            # Nothing is left to be written with the next plan.
            try:
                self.engine.state.table.writes.flush()
            except Exception as failure:
                for held in filter(None, (self._slots.get(one.slot) for one in admissions)):
                    held.error = self._refuse(held, "it cannot be admitted", failure)

    def _admit(self, admission: Admission) -> None:
        slot, engine = admission.slot, self.engine
        if slot in self._slots:
            raise PlanError(
                f"admissions.slot: {slot} is held by request {self._slots[slot].request_id}"
            )
        sizes = engine.state.sizes
        error = find_fault(
            *(admission, sizes.block_size, sizes.max_model_len, engine.model.vocab_size),
            shares_blocks=engine.state.recurrent is None,
        )
        held = self._slots[slot] = hold(admission, error, sizes.block_size)
        if error is None:
            try:
                if admission.sampling.grammar:
                    held.error = engine.masks.open(admission)
                if held.error is None:
                    engine.state.admit(admission)
                    if engine.drafter is not None:
                        engine.drafter.admit(admission)
            except Exception as failure:
                held.error = self._refuse(held, "it cannot be admitted", failure)

    def _find_rows(self, launched: LaunchedPlan) -> list[PlannedRow]:
        """Returns the rows that can run; notes the others, and why they cannot."""
        rows: list[PlannedRow] = []
        for planned in launched.plan.rows():
            held = self._slots.get(planned.slot)
            if held is None:
                launched.errors[planned.slot] = f"slot {planned.slot} holds no request"
            elif held.error is not None:
                launched.errors[planned.slot] = held.error
                launched.idle[planned.slot] = held.num_tokens
            else:
                rows.append(planned)
                launched.rows[planned.slot] = held
        return rows

    @torch.inference_mode()
    def _start(self, launched: LaunchedPlan, rows: list[PlannedRow]) -> None:
        engine, held = self.engine, list(launched.rows.values())
        columns = [
            [row.slot for row in rows],
            [row.num_known_tokens for row in rows],
            [row.num_draft_tokens for row in rows],
        ]
        state, new_blocks = engine.state, [row.new_blocks for row in rows]
        if any(new_blocks):
            state.table.append_blocks(columns[0], new_blocks, [slot.num_blocks for slot in held])
            state.table.writes.flush()
            for slot, new in zip(held, new_blocks, strict=True):
                slot.num_blocks += len(new)
        needs, plan = state.sampling.needs(columns[0]), launched.plan
        bounds = find_bounds(
            *(rows, held, state.sizes.block_size, needs),
            *(plan.least_chance, plan.max_drafter_tokens, plan.num_form_tokens),
        )
        launched.num_unseen = [slot.num_unseen for slot in held]
        for row, slot in zip(rows, held, strict=True):
            slot.num_unseen += 1 + row.num_draft_tokens
        if bounds.uses_drafter:
            launched.expected_draft_ns = engine.expected_draft_ns(bounds.max_num_drafts)
        launched.wanted = find_wanted(rows, held)
        targets = find_targets(launched.wanted) if launched.wanted else None
        launched.step = engine.launch(columns, bounds, targets)

    def _note(self, launched: LaunchedPlan, outputs: Outputs[Int32Column]) -> None:
        """Keeps what the host has to know of the rows, and says which of them have failed."""
        first = 0
        for index, (slot, held) in enumerate(launched.rows.items()):
            # A later plan, launched by now, may have brought another window.
            if held.window_sequence <= launched.plan.sequence:
                held.has_window = bool(outputs.num_window_tokens[index] > 0)
            if outputs.draft_sources[index] > PREDICTION:
                # The drafter has seen all but what this step and later ones bring.
                held.num_unseen -= launched.num_unseen[index]
            number = int(outputs.num_emitted_tokens[index])
            if outputs.failures[index] == RowFailure.NOT_FINITE:
                launched.errors[slot] = "the model's logits are not finite"
            elif outputs.failures[index] == RowFailure.STUCK:
                launched.errors[slot] = self._explain_stop(slot, held)
            elif outputs.is_short[index]:
                launched.errors[slot] = (
                    f"too few blocks: {held.num_blocks} do not hold the known tokens"
                )
            if held.has_grammar and number:
                emitted = outputs.token_ids[first : first + number].tolist()
                # A grammar that can be followed no further fails the next row.
                try:
                    held.error = self.engine.masks.commit(slot, emitted)
                except Exception as failure:
                    held.error = self._refuse(held, "its grammar has failed", failure)
            if outputs.lengths[index] >= held.min_length:
                held.min_length = 0
            first += number

    def _explain_stop(self, slot: int, held: HeldSlot) -> str:
        """Returns why no token may come next in a slot."""
        fault = self.engine.masks.fault(slot) if held.has_grammar else None
        if fault is None and held.min_length:
            fault = "min_tokens: the answer has to end before it has as many tokens"
        return fault or "grammar: the model has no token that may come next"

    def _fail(self, launched: LaunchedPlan, error: Exception) -> None:
        """Notes that the step came to nothing; raises DeviceLostError if nor will any other."""
        logger.error("plan %d: the forward pass failed", launched.plan.sequence, exc_info=error)
        self.engine.executor.check_device()
        reason = one_line(error)
        for slot, held in launched.rows.items():
            launched.errors[slot] = f"the forward pass failed: {reason}"
            launched.idle[slot] = held.num_tokens
        launched.rows.clear()
        launched.step = None

    def _refuse(self, held: HeldSlot, what: str, error: Exception) -> str:
        """Returns why a request can run no more; raises DeviceLostError if nor can any other."""
        self.engine.executor.check_failure(error)
        logger.error("request %s: %s", held.request_id, what, exc_info=error)
        return f"{what}: {one_line(error)}"
