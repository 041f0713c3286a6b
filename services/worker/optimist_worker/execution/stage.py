"""A stage's part of every step."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from optimist_common.columns import Int32Column
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.bounds import StepBounds
from optimist_worker.core.batch.logprobs import LogprobPlaces
from optimist_worker.execution.digest import draft_digest
from optimist_worker.execution.group import GroupError
from optimist_worker.execution.stage_link import StageLink
from optimist_worker.execution.stage_masks import StageMasks
from optimist_worker.execution.stage_pass import StagePass
from optimist_worker.execution.stage_trace import StageTrace
from optimist_worker.execution.stage_verdict import StageVerdict, read_verdict
from optimist_worker.execution.step import Step
from optimist_worker.execution.step_parts import JudgedStep, PreparedStep
from optimist_worker.execution.stopwatch import HostStopwatch
from optimist_worker.execution.verdict_inbox import VerdictInbox
from optimist_worker.model.masks import Masks
from optimist_worker.model.model import Model
from optimist_worker.model.stage_loading import StageCut

logger = logging.getLogger(__name__)


class StageError(RuntimeError):
    """A stage could not do its part of a pass; the text says which and why."""


class StagedStep:
    """A step of which this stage has done its part; the state moves on when it is waited for."""

    def __init__(
        self,
        step: Step,
        prepared: PreparedStep | None,
        num_rows: int,
        watch: HostStopwatch,
        device: torch.device,
        wait_for_verdict: Callable[[], StageVerdict] | None,
    ) -> None:
        """Notes what is started.

        Args:
            step: The state, and what moves it on.
            prepared: None if not even that went well.
            num_rows: How many of the rows are not padding.
            watch: Of the drafter.
            device: Of the state.
            wait_for_verdict: Where the first stage gets what came of the step; None: it is told.
        """
        self.watch = watch
        self.number = 0
        """Of the pass, alike at all stages; counted from 1."""
        self.told: StageVerdict | None = None
        """What came of it, once that is known here."""
        self._step, self._prepared, self._num_rows = step, prepared, num_rows
        self._device, self._wait_for_verdict = device, wait_for_verdict

    @property
    def has_pass(self) -> bool:
        """Whether anything runs through the stages; else nothing comes of the step."""
        return self._prepared is None or self._prepared.batch is not None

    def wait(self) -> Int32Column:
        """Moves the state on; returns what `outputs.pack` has packed.

        Raises:
            StageError: A stage has failed.
            RuntimeError: PyTorch refuses it.
        """
        with on_device(self._device):
            packed = self._finish()[: self._num_rows].cpu()
        columns: Int32Column = packed.numpy()
        return columns

    def take_scored(self) -> Int32Column | None:
        """Returns log-probabilities, after `wait`, see `StepTensors`."""
        if self.told is None or self.told.scored is None:
            return None
        scored: Int32Column = self.told.scored.numpy()
        return scored

    def _finish(self) -> torch.Tensor:
        prepared, told = self._prepared, self.told
        if prepared is not None and prepared.batch is None:
            return self._step.skip(prepared)
        if told is None and self._wait_for_verdict is not None:
            told = self.told = self._wait_for_verdict()
        if told is None or told.number != self.number:
            raise GroupError(f"the verdict on pass {self.number} is not there")
        if prepared is None or told.verdict is None:
            raise StageError(told.failure)
        if draft_digest(prepared.proposal.drafts) != told.drafts:
            # The verdict rests on states of the drafts of the first stage.
            raise GroupError(f"pass {self.number} has other drafts at the last stage than here")
        verdict = _move(told.verdict, self._device)
        return self._step.settle(prepared, verdict, self.watch)


class Stage:
    """Runs the part that a stage has of the model, between the stages before and behind."""

    def __init__(self, model: Model, cut: StageCut, link: StageLink, trace: StageTrace) -> None:
        """Takes its place among the stages."""
        self.place, self.link = cut.place, link
        self.inbox = VerdictInbox(link) if cut.place.is_first else None
        self.masks: StageMasks | None = None
        """What follows no grammars, in stages that do not choose tokens."""
        self._model, self._trace = model, trace
        self._pass = StagePass(model, cut)
        self._num_passes = 0
        self._verdict = b""

    def make_masks(self, masks: Masks) -> Masks | StageMasks:
        """Returns what follows grammars at this stage."""
        if self.place.is_last:
            return masks
        self.masks = StageMasks(masks)
        return self.masks

    def tell(self, step: StagedStep, told: StageVerdict) -> None:
        """Notes what came of a step, which is settled next."""
        step.told = told
        if self.masks is not None:
            self.masks.tell(told.faults)

    def take_verdict_bytes(self) -> bytes:
        """Returns the verdict of the plan that was settled last; empty if it needed none."""
        data, self._verdict = self._verdict, b""
        return data

    def _wait_for_verdict(self) -> StageVerdict:
        if self.inbox is None:
            raise GroupError("only the first stage waits for verdicts")
        self._verdict = self.inbox.take()
        told = read_verdict(self._verdict)
        if self.masks is not None:
            self.masks.tell(told.faults)
        return told

    def start(
        self,
        step: Step,
        columns: torch.Tensor,
        bounds: StepBounds,
        num_rows: int,
        masks: Masks | StageMasks,
        wanted: LogprobPlaces | None,
    ) -> StagedStep:
        """Does this stage's part of a step, and hands it on.

        What fails here fails at all stages: the others hear of it in place of the states.

        Args:
            step: The state, and what moves it on.
            columns: Of the plan, see `Step.run`.
            bounds: What the host knows of them.
            num_rows: How many of the rows are not padding.
            masks: Of the grammars; read by the last stage.
            wanted: Which log-probabilities are wanted, on the device.

        Raises:
            GroupError: Another stage is gone.
        """
        device, failure = self._model.device, ""
        source = None if self.inbox is None else self._wait_for_verdict
        with on_device(device):
            prepared, watch = None, HostStopwatch()
            try:
                prepared = step.prepare(columns, bounds, watch, wanted)
            except Exception as error:
                failure = self._explain(error)
            staged = StagedStep(step, prepared, num_rows, watch, device, source)
            if not staged.has_pass:
                return staged
            self._num_passes += 1
            staged.number = self._num_passes
            judge = None
            if prepared is not None and self.place.is_last:
                judge = partial(step.judge, prepared, masks=masks)
            staged.told = self._run(prepared, failure, judge)
        return staged

    def _run(
        self,
        prepared: PreparedStep | None,
        failure: str,
        judge: Callable[[torch.Tensor], JudgedStep] | None,
    ) -> StageVerdict | None:
        """Runs a pass from the stage before to the next; the last one returns its verdict."""
        number, model, hidden = self._num_passes, self._model, None
        if not self.place.is_first:
            hidden, failed_before = self.link.take_over(
                number, self._pass.hidden_size, model.dtype, model.device
            )
            failure = failure or failed_before
        output, judged = None, None
        if prepared is not None and prepared.batch is not None and not failure:
            if hidden is not None and len(hidden) != len(prepared.batch.input_ids):
                raise GroupError(
                    f"pass {number} has {len(hidden)} tokens at the stage before and "
                    f"{len(prepared.batch.input_ids)} here"
                )
            try:
                with self._trace.note(number):
                    output = self._pass.run(prepared.batch, hidden)
                    judged = None if judge is None else judge(output)
            except Exception as error:
                output, failure = None, self._explain(error)
        if not self.place.is_last:
            self.link.hand_on(number, output, failure)
            return None
        if judged is None or prepared is None:
            return StageVerdict(number, None, failure=failure)
        return _to_host(number, judged, prepared)

    def _explain(self, error: Exception) -> str:
        logger.error("stage %d: the forward pass failed", self.place.index, exc_info=error)
        return f"stage {self.place.index}: {' '.join(str(error).split())[:300]}"


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Makes a CUDA device the thread's current one, as streams need it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _to_host(number: int, judged: JudgedStep, prepared: PreparedStep) -> StageVerdict:
    verdict, scored = judged
    on_host = _move(verdict, torch.device("cpu"))
    drafts = draft_digest(prepared.proposal.drafts)
    return StageVerdict(number, on_host, None if scored is None else scored.cpu(), drafts=drafts)


def _move(verdict: Verdict, device: torch.device) -> Verdict:
    return Verdict(
        token_ids=verdict.token_ids.to(device),
        num_accepted=verdict.num_accepted.to(device),
        path=None if verdict.path is None else verdict.path.to(device),
        is_finite=verdict.is_finite.to(device),
    )
