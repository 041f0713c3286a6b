"""The stages of a pipeline: the part of every step that each of them does."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch

from optimist_common.errors import one_line
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.execution.codec import write_plan
from optimist_worker.execution.commands import Command, digest, draft_digest
from optimist_worker.execution.executor import Executor, FinishedStep, StepInput
from optimist_worker.execution.group import GroupError
from optimist_worker.execution.stage_link import StageLink
from optimist_worker.execution.stage_pass import (
    StageMasks,
    StagePass,
    StageVerdict,
    read_verdict,
)
from optimist_worker.execution.step import PreparedStep, Step, Stopwatch
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.division import StageCut
from optimist_worker.model.model import Model

logger = logging.getLogger(__name__)

_SPARE_PLANS = 1
"""Plans beyond one per stage, with which the first stage goes on while an answer is on its way."""


class StageError(RuntimeError):
    """A stage could not do its part of a pass; the text says which and why."""


class Stage(Executor):
    """Runs the part that a stage has of the model, between the stages before and after it."""

    settles_late = True

    def __init__(
        self,
        model: Model,
        cut: StageCut,
        step: Step,
        masks: Masks,
        link: StageLink,
    ) -> None:
        """Takes its position among the stages; all but the last one have `StageMasks`."""
        super().__init__(model.device, masks)
        self.position, self.link = cut.position, link
        self.num_stages = cut.position.num_stages
        self.most_plans = self.num_stages + _SPARE_PLANS
        self.step, self._model = step, model
        self._pass = StagePass(model, cut)
        self._num_passes = 0
        if cut.position.is_first:
            link.listen()

    def check_failure(self, error: Exception) -> None:
        """Raises: other stages are in the step by now."""
        raise error

    def launch(self, step: StepInput) -> "StagedStep":
        """Does this stage's part of a step, and hands it on.

        What fails here fails at all stages: the others receive that in place of the states.
        """
        failure = ""
        wanted = None if step.wanted is None else step.wanted.to(self.device)
        with on_device(self.device):
            prepared, watch = None, Stopwatch()
            try:
                prepared = self.step.prepare(step.columns, step.bounds, watch, wanted)
            except Exception as error:
                failure = self._explain(error)
            staged = StagedStep(self, prepared, step.num_rows, watch)
            if not staged.has_pass:
                return staged
            self._num_passes += 1
            staged.number = self._num_passes
            staged.verdict = self._run(prepared, failure)
        return staged

    def wait_for_verdict(self) -> StageVerdict | None:
        """Returns what came of the oldest pass, where that arrives here."""
        return None

    def _run(self, prepared: PreparedStep | None, failure: str) -> StageVerdict | None:
        """Runs a pass from the stage before to the next; the last one returns its verdict."""
        number, model, hidden = self._num_passes, self._model, None
        if not self.position.is_first:
            size = self._pass.hidden_size
            hidden, failed_before = self.link.take_over(number, size, model.dtype, model.device)
            failure = failure or failed_before
        output, judged = None, None
        if prepared is not None and prepared.batch is not None and not failure:
            if hidden is not None and len(hidden) != len(prepared.batch.input_ids):
                raise GroupError(
                    f"pass {number} has {len(hidden)} tokens at the stage before and "
                    f"{len(prepared.batch.input_ids)} here"
                )
            try:
                output = self._pass.run(prepared.batch, hidden)
                if self.position.is_last:
                    judged = self.step.judge(prepared, output, self.masks)
            except Exception as error:
                output, failure = None, self._explain(error)
        if not self.position.is_last:
            self.link.hand_on(number, output, failure)
            return None
        if judged is None or prepared is None:
            return StageVerdict(number, None, failure=failure)
        verdict, scored = judged
        drafts = draft_digest(prepared.proposal.drafts)
        on_host = None if scored is None else scored.cpu()
        return StageVerdict(number, _move(verdict, torch.device("cpu")), on_host, drafts=drafts)

    def _explain(self, error: Exception) -> str:
        logger.error("stage %d: the forward pass failed", self.position.index, exc_info=error)
        return f"stage {self.position.index}: {one_line(error)}"


class FirstStage(Stage):
    """The first stage, which has the others do what it does.

    All stages prepare and settle plans alike, so their states agree wherever it matters: plans on
    their way at the same time have no row in common. The last stage settles a plan as soon as it
    has judged it, all others when the first one does.
    """

    _verdict = b""
    """What came of the plan that was settled last; empty if it had no pass."""

    def on_step_end(self, wake: Callable[[], None] | None) -> bool:
        """Has something called when the last stage has judged a pass."""
        self.link.on_verdict(wake)
        return True

    def release_all(self) -> None:
        """Has the other stages free every slot."""
        self._command_all(Command.RELEASE_ALL)

    def prepare(self, plan: Plan) -> None:
        """Has the other stages do their parts of a plan."""
        self._command_all(Command.LAUNCH, write_plan(plan).SerializeToString())

    def wait_for_verdict(self) -> StageVerdict:
        """Returns what came of the oldest pass."""
        self._verdict = self.link.take_verdict()
        return read_verdict(self._verdict)

    def finish(self, result: StepResult) -> None:
        """Has the other stages settle the oldest plan and compare what came of it."""
        expected, verdict = digest(result), self._verdict
        self._verdict = b""
        for stage in range(1, self.num_stages):
            # The last one has made it.
            known = b"" if stage == self.num_stages - 1 else verdict
            self.link.command(stage, bytes([Command.COLLECT]) + expected + known)
        if verdict:
            self.link.forget_plan()

    def end(self) -> None:
        """Has the other stages end."""
        self._command_all(Command.END)
        self.link.close()

    def _command_all(self, command: Command, payload: bytes = b"") -> None:
        for stage in range(1, self.num_stages):
            self.link.command(stage, bytes([command]) + payload)


@dataclass(slots=True, eq=False)
class StagedStep:
    """A step of which this stage has done its part; the state moves on when it is waited for."""

    stage: Stage
    prepared: PreparedStep | None
    """None if not even that went well."""
    num_rows: int
    """How many of the rows are not padding."""
    watch: Stopwatch
    """Of the drafter."""
    number: int = 0
    """Of the pass, alike at all stages; counted from 1."""
    verdict: StageVerdict | None = None
    """What came of it, once that is known here."""

    @property
    def has_pass(self) -> bool:
        """Whether anything runs through the stages; else the step changes nothing."""
        return self.prepared is None or self.prepared.batch is not None

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return at once, at the first stage; of the oldest step only."""
        return not self.has_pass or self.stage.link.has_verdict

    def wait(self) -> FinishedStep:
        """Moves the state on; raises StageError if a stage has failed, RuntimeError of PyTorch."""
        with on_device(self.stage.device):
            packed = self._finish()[: self.num_rows].cpu()
        scored = None if self.verdict is None else self.verdict.scored
        on_host = None if scored is None else scored.numpy()
        return FinishedStep(packed.numpy(), on_host, self.watch.total_ns())

    def _finish(self) -> torch.Tensor:
        prepared, stage = self.prepared, self.stage
        if prepared is not None and prepared.batch is None:
            return stage.step.settle(prepared, None, self.watch)
        reached = self.verdict = self.verdict or stage.wait_for_verdict()
        if reached is None or reached.number != self.number:
            raise GroupError(f"the verdict on pass {self.number} is not there")
        if isinstance(stage.masks, StageMasks):
            stage.masks.faults = reached.faults
        if prepared is None or reached.verdict is None:
            raise StageError(reached.failure)
        if draft_digest(prepared.proposal.drafts) != reached.drafts:
            # The verdict rests on states of the drafts of the first stage.
            raise GroupError(f"pass {self.number} has other drafts at the last stage than here")
        verdict = _move(reached.verdict, stage.device)
        return stage.step.settle(prepared, verdict, self.watch)


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Makes a CUDA device the thread's current one, as streams need it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _move(verdict: Verdict, device: torch.device) -> Verdict:
    tensors: dict[str, Any] = {each.name: getattr(verdict, each.name) for each in fields(verdict)}
    for name, tensor in tensors.items():
        tensors[name] = None if tensor is None else tensor.to(device)
    return Verdict(**tensors)
