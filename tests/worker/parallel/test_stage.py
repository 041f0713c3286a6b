"""Stages in this process, joined by queues in place of torch.distributed or led one by one."""

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_common.errors import SetupError
from optimist_worker.core.acceptance.verdict import AcceptanceRule, Verdict
from optimist_worker.core.attention.paged_attention import AttentionBatch, KVPool
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.core.plan import Plan, PlannedRow, StepResult, WindowUpdate
from optimist_worker.drafters.build import build_drafter
from optimist_worker.execution.commands import digest
from optimist_worker.execution.group import GroupError
from optimist_worker.execution.stage import FirstStage, Stage, StagedStep
from optimist_worker.execution.stage_pass import (
    StageMasks,
    StagePass,
    StageVerdict,
    read_verdict,
    write_verdict,
)
from optimist_worker.execution.step import Step
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.division import StagePosition
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model, load_model
from optimist_worker.runner.runner import Engine, LaunchedPlan, Runner
from optimist_worker.settings import WorkerSettings
from tests.worker.drafters.drafting import blur
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

    def __init__(self, path: Path, drafter: str = "none") -> None:
        self.link = QueueLink()
        self.first, self.last = (self._make(path, index, drafter) for index in (0, 1))

    def launch(self, plan: Plan, at_last: Plan | None = None) -> tuple[LaunchedPlan, StepResult]:
        """Starts a plan at the first stage; the last one does its part and settles it."""
        return self.first.launch(plan), self.finish(at_last or plan)

    def finish(self, plan: Plan) -> StepResult:
        """Has the last stage do its part of a plan and settle it."""
        of_last = self.last.launch(plan)
        step = of_last.step
        verdict = step.verdict if isinstance(step, StagedStep) else None
        result = self.last.collect(of_last)
        if verdict is not None:
            self.link.send_verdict(write_verdict(verdict))
        return result

    def collect(self, launched: LaunchedPlan, of_last: StepResult) -> StepResult:
        result = self.first.collect(launched)
        assert digest(result) == digest(of_last)
        return result

    def execute(self, plan: Plan) -> StepResult:
        return self.collect(*self.launch(plan))

    def _make(self, path: Path, index: int, drafter: str) -> Runner:
        model = load_model(str(path), "float64", "cpu", stage=StagePosition(index, 2))
        assert model.cut is not None
        link: Any = self.link
        state = DeviceState(model, SIZES)
        weights = None
        if drafter == "draft_model":
            weights = load_model(str(path), "float64", "cpu")
            blur(weights)
        settings = WorkerSettings.model_validate({"model": str(path), "drafter": drafter})
        guarded, tap = build_drafter(settings, weights, model, state)
        step = Step(model, state, guarded, tap, AcceptanceRule.COUPLED)
        kind = FirstStage if index == 0 else Stage
        masks = (StageMasks if index == 0 else Masks)(str(path), model)
        stage = kind(model, model.cut, step, masks, link)
        return Runner(Engine(model, state, stage, guarded))


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


def test_a_verdict_on_other_drafts_is_refused(pair: Pair, llama: Runner) -> None:
    truth = generate(llama, PROMPT, 4)
    pair.execute(begin(1, 0))
    # As if the first stage had drafted otherwise, because its device computes otherwise.
    windows = [WindowUpdate(0, 1, [truth[1] + 1, truth[2]]), WindowUpdate(0, 1, truth[1:3])]
    first, last = (decode(2, 0, 2, windows=[window]) for window in windows)
    launched = pair.launch(first, last)
    with pytest.raises(GroupError, match="pass 2 has other drafts at the last stage than here"):
        pair.collect(*launched)


def test_a_draft_model_drafts_alike_at_all_stages(llama_path: Path, llama: Runner) -> None:
    pair, truth = Pair(llama_path, "draft_model"), generate(llama, PROMPT, 20)
    output: list[int] = []
    plan, num_accepted = begin(1, 0), 0
    while len(output) < len(truth):
        (row,) = rows_of(pair.execute(plan))
        assert row.error is None
        output += row.token_ids
        num_accepted += row.num_accepted_tokens
        plan = decode(2, 0, 4)
    assert output[: len(truth)] == truth
    assert num_accepted > 0


NUM_TOKENS = 40


def make_batch(model: Model) -> FlatBatch:
    """A prompt of some tokens, on blocks of its own."""
    indices = torch.arange(NUM_TOKENS)
    pool = KVPool(model.layers, 4, 16, model.dtype, model.device)
    attention = AttentionBatch.of_row(pool, 0, NUM_TOKENS)
    return FlatBatch(5 + indices, indices, indices, attention)


def load_stage(path: Path, index: int, number: int, *, dummy_weights: bool = False) -> Model:
    position = StagePosition(index, number)
    return load_model(str(path), "float32", "cpu", stage=position, dummy_weights=dummy_weights)


def run_stages(stages: list[Model]) -> torch.Tensor:
    hidden = None
    for stage in stages:
        assert stage.cut is not None
        hidden = StagePass(stage, stage.cut).run(make_batch(stage), hidden)
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("family", ["gemma2", "gpt_neox", "cohere2", "gpt_oss", "deepseek_v3"])
def test_stages_compute_what_the_model_computes(
    checkpoint: Callable[[str], Path], family: str
) -> None:
    check_stages(checkpoint(family), dummy_weights=False)


def test_stages_make_the_same_random_weights(llama_path: Path) -> None:
    check_stages(llama_path, dummy_weights=True)


def check_stages(path: Path, *, dummy_weights: bool) -> None:
    whole = load_model(str(path), "float32", "cpu", dummy_weights=dummy_weights)
    stages = [load_stage(path, index, 3, dummy_weights=dummy_weights) for index in range(3)]
    assert torch.equal(run_stages(stages), whole.forward(make_batch(whole)))
    # A stage has weights and keys and values of its own layers only.
    assert all(stage.num_parameters < 0.8 * whole.num_parameters for stage in stages)
    kept = [spec for stage in stages for spec in stage.layers if spec.num_kv_heads]
    assert kept == whole.layers
    assert all(stage.vocab_size == whole.vocab_size for stage in stages)


def test_more_stages_than_layers_are_refused(llama_path: Path) -> None:
    with pytest.raises(SetupError, match=r"--pipeline-parallel-size: .* has 4 layers; choose at"):
        load_stage(llama_path, 0, 5)


@settings(max_examples=30)
@given(
    st.none() | st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()),
    st.none() | st.tuples(st.integers(0, 3), st.integers(1, 5)),
    st.dictionaries(st.integers(0, 9), st.text(max_size=20)),
    st.text(max_size=20),
)
def test_a_verdict_is_read_as_it_was_written(
    shape: tuple[int, int, bool] | None,
    scored_shape: tuple[int, int] | None,
    faults: dict[int, str],
    failure: str,
) -> None:
    generator = torch.Generator().manual_seed(len(failure))
    draw = functools.partial(torch.randint, 0, 2**31 - 1, generator=generator)
    scored = None if scored_shape is None else draw(scored_shape).int()
    written = StageVerdict(7, None, scored, failure, faults, 2**32 - 1)
    if shape is not None:
        num_rows, depth, has_path = shape
        path = draw((num_rows, depth)) if has_path else None
        flags = draw((2, num_rows)) % 2 == 0
        written.verdict = Verdict(draw((num_rows, 1 + depth)), draw((num_rows,)), path, *flags)
    read = read_verdict(write_verdict(written))
    assert replace(read, verdict=None, scored=None) == replace(written, verdict=None, scored=None)
    names = [field.name for field in fields(Verdict)]
    pairs: list[tuple[Any, Any]] = [
        (getattr(read.verdict, n, None), getattr(written.verdict, n, None)) for n in names
    ]
    for one, other in [(read.scored, scored), *pairs]:
        assert one is other is None or torch.equal(one, other)
