"""Two stages in this process, joined by queues in place of torch.distributed."""

from collections import deque
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import Plan, PlannedRow, StepResult, WindowUpdate
from optimist_worker.execution.commands import digest
from optimist_worker.execution.group import GroupError
from optimist_worker.execution.stage import FirstStage, Stage, StagedStep
from optimist_worker.execution.stage_pass import StagePass, StageTrace, write_verdict
from optimist_worker.execution.step import Step
from optimist_worker.model.division import StagePosition
from optimist_worker.model.grammar import Masks
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Engine, LaunchedPlan, Runner
from tests.worker.step import SIZES, admit, blocks_of, generate, plan_rows, rows_of

PROMPT = [5, 6, 7, 8, 9]


class QueueLink:
    """Both ends of the lines between two stages."""

    def __init__(self) -> None:
        self._states: deque[tuple[int, torch.Tensor | None, str]] = deque()
        self._verdicts: SimpleQueue[bytes] = SimpleQueue()

    def hand_on(self, number: int, hidden: torch.Tensor | None, failure: str) -> None:
        self._states.append((number, hidden, failure))

    def take_over(self, number: int, *_: Any) -> tuple[torch.Tensor | None, str]:
        given, hidden, failure = self._states.popleft()
        assert given == number
        return hidden, failure

    def send_verdict(self, data: bytes) -> None:
        self._verdicts.put(data)

    def listen(self, *_: Any) -> None:
        """Nor does it need commands, or keep what was sent."""

    command = forget_plan = listen

    def take_verdict(self) -> bytes:
        return self._verdicts.get()


class Pair:
    """A first and a last stage, led as by commands."""

    def __init__(self, path: Path) -> None:
        self.link = QueueLink()
        self.first, self.last = (self._make(path, index) for index in (0, 1))

    def launch(self, plan: Plan, at_last: Plan | None = None) -> tuple[LaunchedPlan, StepResult]:
        """Starts a plan at the first stage; the last one does its part and settles it."""
        launched, of_last = self.first.launch(plan), self.last.launch(at_last or plan)
        step = of_last.step
        verdict = step.verdict if isinstance(step, StagedStep) else None
        result = self.last.collect(of_last)
        if verdict is not None:
            self.link.send_verdict(write_verdict(verdict))
        return launched, result

    def collect(self, launched: LaunchedPlan, of_last: StepResult) -> StepResult:
        result = self.first.collect(launched)
        assert digest(result) == digest(of_last)
        return result

    def execute(self, plan: Plan) -> StepResult:
        return self.collect(*self.launch(plan))

    def _make(self, path: Path, index: int) -> Runner:
        model = load_model(str(path), "float64", "cpu", stage=StagePosition(index, 2))
        assert model.cut is not None
        link: Any = self.link
        state = DeviceState(model, SIZES)
        step = Step(model, state, None, None, AcceptanceRule.COUPLED, 0.0)
        kind = FirstStage if index == 0 else Stage
        stage = kind(model, model.cut, step, Masks(str(path), model), link, StageTrace("", index))
        return Runner(Engine(model, state, stage))


@pytest.fixture
def pair(llama_path: Path) -> Pair:
    return Pair(llama_path)


def decode(sequence: int, slot: int, num_drafts: int = 0, **parts: Any) -> Plan:
    return plan_rows(sequence, [PlannedRow(slot, 1, num_drafts, [])], **parts)


def begin(sequence: int, slot: int) -> Plan:
    row = PlannedRow(slot, len(PROMPT), 0, blocks_of(slot))
    return plan_rows(sequence, [row], admissions=[admit(slot, PROMPT)])


@pytest.mark.parametrize("index", [0, 1])
def test_what_fails_at_one_stage_fails_its_rows_at_all(
    pair: Pair, llama: Runner, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    truth = generate(llama, PROMPT, 2)
    assert rows_of(pair.execute(begin(1, 0)))[0].token_ids == truth[:1]
    run = StagePass.run

    def refuse(self: StagePass, *arguments: Any) -> torch.Tensor:
        if self._position.index == index:
            raise RuntimeError("no memory left")
        return run(self, *arguments)

    monkeypatch.setattr(StagePass, "run", refuse)
    (row,) = rows_of(pair.execute(decode(2, 0)))
    assert row.error == f"the forward pass failed: stage {index}: no memory left"
    assert row.token_ids == []
    monkeypatch.undo()
    # The stages are where they were before.
    assert rows_of(pair.execute(decode(3, 0)))[0].token_ids == truth[1:]


def test_a_window_for_a_row_on_its_way_takes_effect_after_it(pair: Pair, llama: Runner) -> None:
    truth = generate(llama, PROMPT, 8)
    pair.execute(begin(1, 0))
    on_its_way = pair.launch(decode(2, 0, 4))
    # It comes with a plan of other rows.
    other = pair.launch(plan_rows(3, windows=[WindowUpdate(0, 1, truth[1:])]))
    (row,) = rows_of(pair.collect(*on_its_way))
    assert (row.token_ids, row.num_drafted_tokens) == (truth[1:2], 0)
    pair.collect(*other)
    (row,) = rows_of(pair.execute(decode(4, 0, 4)))
    assert (row.token_ids, row.num_accepted_tokens) == (truth[2:7], 4)


def test_a_verdict_on_other_drafts_is_refused(pair: Pair, llama: Runner) -> None:
    truth = generate(llama, PROMPT, 4)
    pair.execute(begin(1, 0))
    # As if the first stage had drafted otherwise, because its device computes otherwise.
    windows = [WindowUpdate(0, 1, [truth[1] + 1, truth[2]]), WindowUpdate(0, 1, truth[1:3])]
    first, last = (decode(2, 0, 2, windows=[window]) for window in windows)
    launched = pair.launch(first, last)
    with pytest.raises(GroupError, match="pass 2 has other drafts at the last stage than here"):
        pair.collect(*launched)


def test_a_verdict_on_another_pass_is_refused(pair: Pair) -> None:
    launched, _ = pair.launch(begin(1, 0))
    first = pair.first.engine.executor
    assert isinstance(first, FirstStage)
    first.link.take_verdict()
    pair.launch(begin(2, 1))
    with pytest.raises(GroupError, match="the verdict on pass 1 is not there"):
        pair.first.collect(launched)
