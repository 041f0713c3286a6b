"""The step padded to bounds, as where nothing is read, does what the step that reads does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance import rules
from optimist_worker.core.acceptance.choice import CHOOSE
from optimist_worker.core.acceptance.verdict import AcceptanceRule, Verdict, VerifyPass
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.core.batch.step_sizes import holds
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import PlannedRow
from optimist_worker.execution.executor import RunningStep, StepInput
from optimist_worker.runner.runner import Engine, Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.scenario import Request, Scenario, find_truths
from tests.worker.step import admit, build_runner, plan_rows, rows_of

MANNERS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5),
    SamplingParams(temperature=1.1, top_k=9, min_p=0.02, seed=-8, repetition_penalty=1.2),
    SamplingParams(logit_bias={7: 3.0}, presence_penalty=0.4),
]


@pytest.fixture(scope="module")
def truths(shared_llama: Runner) -> list[Request]:
    return find_truths(shared_llama, MANNERS, 50)


@pytest.fixture(autouse=True)
def _reads_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the choice of tokens go by what is being run, which here is always on the CPU."""
    launch, reads = Engine.launch, [True]

    def note_and_launch(engine: Engine, *arguments: object) -> object:
        reads[0] = engine.state.table.reads_sizes
        return launch(engine, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "launch", note_and_launch)
    monkeypatch.setattr(rules, "_may_read", lambda tensor: reads[0])


def check_scenario(reading: Runner, padding: Runner, scenario: Scenario) -> int:
    """Gives both runners the same plans; returns how many drafts were accepted."""
    reading.release_all()
    padding.release_all()
    num_accepted = 0
    for plan in scenario.plans():
        expected, result = reading.execute(plan), padding.execute(plan)
        assert rows_of(result) == rows_of(expected)
        assert result.draft_sources.tolist() == expected.draft_sources.tolist()
        assert result.num_tokens == expected.num_tokens
        assert not expected.errors
        scenario.note({row.slot: row.token_ids for row in rows_of(expected)})
        num_accepted += int(expected.num_accepted_tokens.sum())
        for slot in scenario.requests:
            assert state_of(padding, slot) == state_of(reading, slot)
    return num_accepted


def state_of(runner: Runner, slot: int) -> list[list[int]]:
    """Columns, tokens and the rest of the window of a slot."""
    state = runner.engine.state
    columns: list[int] = state.table.columns[:, slot].tolist()
    tokens: list[int] = state.table.token_ids[slot, : columns[0]].tolist()
    return [columns, tokens, state.windows.count_left(torch.tensor([slot])).tolist()]


@pytest.fixture(scope="module")
def padding_llama(llama_path: Path) -> Runner:
    return build_runner(llama_path, reads_sizes=False)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**9))
def test_windows_and_trees(
    llama: Runner, padding_llama: Runner, truths: list[Request], seed: int
) -> None:
    check_scenario(llama, padding_llama, Scenario(seed, truths))


def test_sliding_windows(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("gemma2")
    reading, padding = build_runner(path), build_runner(path, reads_sizes=False)
    truths = find_truths(reading, MANNERS, 50)
    for seed in range(2):
        check_scenario(reading, padding, Scenario(seed, truths))


@pytest.mark.parametrize(
    ("way", "shape", "rule"),
    [
        ("ngram", "chain", AcceptanceRule.COUPLED),
        ("draft_model", "fixed", AcceptanceRule.REJECTION),
        ("itself", "chain", AcceptanceRule.COUPLED),
        ("discard", "dynamic", AcceptanceRule.COUPLED),
        ("medusa", "dynamic", AcceptanceRule.COUPLED),
        ("eagle", "fixed", AcceptanceRule.COUPLED),
    ],
)
def test_drafters_and_rules(
    llama_path: Path, truths: list[Request], way: str, shape: str, rule: AcceptanceRule
) -> None:
    reading, padding = (
        drafting_runner(
            llama_path, way, SHAPES[shape], rule=rule, reads_sizes=reads_sizes, most_tokens=512
        )
        for reads_sizes in (True, False)
    )
    # Where sizes are not read, a draft model comes a step later when a window has broken.
    has_windows = way not in ("draft_model", "itself", "discard")
    scenario = Scenario(1, truths, has_windows=has_windows)
    assert check_scenario(reading, padding, scenario) > 0


def test_a_step_does_the_same_in_a_larger_size(
    shared_llama: Runner, llama_path: Path, truths: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its own size is not captured."""
    padding = build_runner(llama_path, reads_sizes=False)
    sizes = [*padding.engine.usual_sizes()]
    moved: list[bool] = []

    def fit(size: StepBounds) -> StepBounds:
        needs = size.needs._replace(processes=True, samples=True, penalizes=True)
        larger = [replace(each, has_minimum=True, needs=needs) for each in sizes]
        fitting = max(
            (each for each in larger if holds(each, size)),
            key=lambda each: (each.num_tokens, each.num_rows),
            default=size,
        )
        moved.append(fitting != size)
        return fitting

    monkeypatch.setattr(padding.engine.executor, "fit", fit)
    assert check_scenario(shared_llama, padding, Scenario(3, truths, has_windows=True)) > 0
    assert sum(moved) > len(moved) / 2


def test_tokens_are_counted_only_as_far_as_a_row_may_reach(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties count what a row has, and not all that a row could have."""
    runner, widths = build_runner(llama_path), list[int]()
    judge = runner.engine.executor._step._judge_drafts  # type: ignore[attr-defined]

    def note(verify: VerifyPass) -> Verdict:
        widths.append(verify.token_ids.shape[1])
        return judge(verify)  # type: ignore[no-any-return]

    monkeypatch.setattr(runner.engine.executor._step, "_judge_drafts", note)  # type: ignore[attr-defined]
    admission = admit(0, [10, 11, 12], SamplingParams(presence_penalty=1.0))
    runner.execute(plan_rows(0, [PlannedRow(0, 3, 0, [0])], admissions=[admission]))
    assert widths == [runner.engine.state.sizes.block_size]


@pytest.mark.parametrize(
    ("way", "rule", "has_kernel", "is_widened"),
    [
        ("ngram", AcceptanceRule.COUPLED, True, True),
        ("ngram", AcceptanceRule.COUPLED, False, False),
        ("ngram", AcceptanceRule.REJECTION, True, False),
        ("medusa", AcceptanceRule.COUPLED, True, False),
    ],
)
def test_cuts_are_taken_for_granted_only_where_the_kernel_chooses(
    llama_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    rule: AcceptanceRule,
    has_kernel: bool,
    is_widened: bool,
) -> None:
    """Plain PyTorch would sort the whole vocabulary for cuts that no row has."""
    kernel = CHOOSE.plain if has_kernel else None
    monkeypatch.setattr(Operation, "kernel_for", lambda self, _: kernel if self is CHOOSE else None)
    padding = drafting_runner(
        llama_path, way, SHAPES["chain"], rule=rule, reads_sizes=False, most_tokens=512
    )
    executor, needs = padding.engine.executor, []
    launch = executor.launch

    def note(step: StepInput) -> RunningStep:
        needs.append(step.bounds.needs)
        return launch(step)

    monkeypatch.setattr(executor, "launch", note)
    admission = admit(0, [10, 11, 12], SamplingParams(temperature=1.0, seed=3))
    rows = [PlannedRow(0, 3, 0, [0])]
    padding.execute(plan_rows(0, rows, admissions=[admission]))
    assert [each.cut_width for each in needs] == [VOCAB_SIZE if is_widened else 0]
    assert [(each.cuts_top_p, each.cuts_min_p) for each in needs] == [(is_widened, is_widened)]
