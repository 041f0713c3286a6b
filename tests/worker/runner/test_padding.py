"""The step padded to bounds, as where nothing is read, does what the step that reads does."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance import rules
from optimist_worker.core.acceptance.choice import CHOOSE
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import Admission, Plan, PlannedRow, WindowUpdate
from optimist_worker.execution.executor import RunningStep, StepInput
from optimist_worker.runner.runner import Engine, Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.drafters.drafting import SHAPES, WAYS, drafting_runner
from tests.worker.step import (
    BLOCK_SIZE,
    SIZES,
    RowResult,
    admit,
    build_runner,
    generate,
    plan_rows,
    rows_of,
)

MANNERS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5),
    SamplingParams(temperature=1.1, top_k=9, min_p=0.02, seed=-8, repetition_penalty=1.2),
    SamplingParams(logit_bias={7: 3.0}, presence_penalty=0.4),
]
NUM_SLOTS = 5
NUM_STEPS = 9


@dataclass
class Request:
    """One that the scenario has admitted, and what has come of it."""

    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)


class Scenario:
    """Random plans: chunks, windows right and wrong, trees, requests that come, go and come back.

    It goes by what one runner answers; another one is given the same plans.
    """

    def __init__(
        self, seed: int, truths: dict[int, list[int]], *, has_windows: bool = True
    ) -> None:
        self._random = random.Random(seed)
        self._window_chance = 0.6 if has_windows else 0.0
        self._truths = truths
        self._free = list(range(SIZES.num_blocks))
        self._random.shuffle(self._free)
        self._held: dict[int, list[int]] = {}
        self.requests: dict[int, Request] = {}
        """By the slot that holds it."""

    def plans(self) -> Iterator[Plan]:
        """Makes a plan at a time; `note` has to be called in between."""
        for sequence in range(NUM_STEPS):
            released = [slot for slot in self.requests if self._random.random() < 0.1]
            given_up = {slot: self.requests.pop(slot) for slot in released}
            for slot in released:
                self._free += self._held.pop(slot)
            free_slots = [slot for slot in range(NUM_SLOTS) if slot not in self.requests]
            admissions = [
                self._admit(slot, given_up.get(slot))
                for slot in free_slots
                if self._random.random() < 0.6
            ]
            slots = [slot for slot in self.requests if self._random.random() < 0.8]
            self._random.shuffle(slots)
            windows = [
                self._window(slot)
                for slot in self.requests
                if self._random.random() < self._window_chance
            ]
            yield plan_rows(
                sequence,
                [self._row(slot) for slot in slots],
                released_slots=released,
                admissions=admissions,
                windows=windows,
            )

    def note(self, rows: list[RowResult]) -> None:
        """Takes in what a plan has brought."""
        for row in rows:
            assert row.error is None
            self.requests[row.slot].output += row.token_ids

    def _admit(self, slot: int, given_up: Request | None) -> Admission:
        """Admits a new request, or one again with its output, as after a preemption."""
        if given_up is not None and self._random.random() < 0.7:
            request = Request(given_up.prompt, given_up.sampling, given_up.output)
        else:
            index = self._random.randrange(len(MANNERS))
            request = Request(prompt_of(index), MANNERS[index])
        self.requests[slot] = request
        self._held[slot] = []
        stops = self._random.choices(range(VOCAB_SIZE), k=3)
        return admit(
            slot,
            request.prompt + request.output,
            request.sampling,
            len(request.prompt),
            stop_token_ids=stops,
            min_length=len(request.prompt) + self._random.choice([0, 9, 50]),
            max_length=len(request.prompt) + len(request.output) + self._random.randint(1, 40),
        )

    def _window(self, slot: int) -> WindowUpdate:
        request = self.requests[slot]
        truth = self._truths[MANNERS.index(request.sampling)]
        base = max(0, len(request.output) - self._random.randint(0, 2))
        tokens = self._spoil(truth[base : base + self._random.randint(0, 24)])
        parents = list(range(-1, len(tokens) - 1))
        num_branches = self._random.choice([0, 0, 1, 3])
        for _ in range(num_branches):
            offset = self._random.randint(0, len(tokens))
            parent = self._random.choice([offset - 1, self._random.randrange(-1, len(tokens) + 1)])
            for token in self._spoil(truth[base + offset :][: self._random.randint(1, 12)]):
                parents.append(min(parent, len(tokens) - 1))
                tokens.append(token)
                parent = len(tokens) - 1
        return WindowUpdate(slot, base, tokens, parents if num_branches else [])

    def _spoil(self, tokens: list[int]) -> list[int]:
        wrong = self._random.choice([0.0, 0.05, 0.3])
        return [
            self._random.randrange(VOCAB_SIZE) if self._random.random() < wrong else token
            for token in tokens
        ]

    def _row(self, slot: int) -> PlannedRow:
        request = self.requests[slot]
        num_known = self._random.choice([1, 3, 11, 30])
        num_drafts = self._random.choice([0, 1, 2, 5, 9, 14])
        # Enough for all there may be; sometimes none for the drafts.
        most = len(request.prompt) + len(request.output) + self._random.choice([1, num_drafts + 1])
        number = max(0, -(-most // BLOCK_SIZE) - len(self._held[slot]))
        new = [self._free.pop() for _ in range(number)]
        self._held[slot] += new
        return PlannedRow(slot, num_known, num_drafts, new)


def prompt_of(index: int) -> list[int]:
    return random.Random(index).choices(range(3, VOCAB_SIZE), k=7 + 9 * index)


def find_truths(runner: Runner) -> dict[int, list[int]]:
    """What the target says without any drafts."""
    return {
        index: generate(runner, prompt_of(index), 50, sampling=sampling)
        for index, sampling in enumerate(MANNERS)
    }


@pytest.fixture(scope="module")
def truths(shared_llama: Runner) -> dict[int, list[int]]:
    return find_truths(shared_llama)


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
        scenario.note(rows_of(expected))
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
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**9))
def test_windows_and_trees(
    llama: Runner, padding_llama: Runner, truths: dict[int, list[int]], seed: int
) -> None:
    check_scenario(llama, padding_llama, Scenario(seed, truths))


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_sliding_windows(checkpoint: Callable[[str], Path], family: str) -> None:
    path = checkpoint(family)
    reading, padding = build_runner(path), build_runner(path, reads_sizes=False)
    truths = find_truths(reading)
    for seed in range(3):
        check_scenario(reading, padding, Scenario(seed, truths))


def build_pair(path: Path, way: str, shape: str, rule: AcceptanceRule) -> tuple[Runner, Runner]:
    """Builds a runner that reads and one that pads."""
    reading, padding = (
        drafting_runner(
            path, way, SHAPES[shape], rule=rule, reads_sizes=reads_sizes, most_tokens=512
        )
        for reads_sizes in (True, False)
    )
    return reading, padding


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("way", "rule"),
    [
        *((way, AcceptanceRule.COUPLED) for way in WAYS),
        ("draft_model", AcceptanceRule.REJECTION),
    ],
)
def test_drafters_and_rules(
    llama_path: Path, truths: dict[int, list[int]], way: str, rule: AcceptanceRule, shape: str
) -> None:
    reading, padding = build_pair(llama_path, way, shape, rule)
    # Where sizes are not read, a draft model comes a step later when a window has broken.
    has_windows = way not in ("draft_model", "itself", "discard")
    accepted = [
        check_scenario(reading, padding, Scenario(seed, truths, has_windows=has_windows))
        for seed in range(2)
    ]
    assert sum(accepted) > 0


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
    _, padding = build_pair(llama_path, way, "chain", rule)
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


def test_own_text_is_looked_at_only_where_a_row_drafts_from_it(llama_path: Path) -> None:
    pair = build_pair(llama_path, "ngram", "chain", AcceptanceRule.COUPLED)
    prompt = [10, 11, 12, 13, 14, 15, 16, 10, 11]
    window = WindowUpdate(0, 0, [17])
    # The second row has no window, so that the drafter is asked.
    rows = [PlannedRow(slot, 100, 5, list(range(4 * slot, 4 * slot + 4))) for slot in (0, 1)]
    admissions = [admit(slot, prompt) for slot in (0, 1)]
    plans = [plan_rows(0, rows, admissions=admissions, windows=[window])]
    later = [PlannedRow(slot, 1, 5, []) for slot in (0, 1)]
    plans += [plan_rows(number, later) for number in (1, 2)]
    said = [[rows_of(runner.execute(plan)) for plan in plans] for runner in pair]
    assert said[0] == said[1]
    # What it said after the window's drafts stands nowhere before.
    assert [step[0].num_drafted_tokens for step in said[0]] == [1, 0, 0]


def test_a_draft_model_takes_no_more_rows_than_its_pass_has_room_for(llama_path: Path) -> None:
    runner = drafting_runner(
        llama_path, "itself", SHAPES["chain"], reads_sizes=False, most_tokens=512
    )
    rows = [PlannedRow(slot, 100, 0, list(range(4 * slot, 4 * slot + 4))) for slot in (0, 1)]
    admissions = [admit(0, list(range(10, 40))), admit(1, [14, 15, 16, 17])]
    first, _ = rows_of(runner.execute(plan_rows(0, rows, admissions=admissions)))
    runner.execute(plan_rows(1, [PlannedRow(1, 1, 4, [])]))
    # The host does not know that nothing is left of this window, so it counts nothing of its row:
    # there is room for 12 tokens, where one row lacks 31 and the other 2.
    window = WindowUpdate(0, 0, [(first.token_ids[0] + 1) % VOCAB_SIZE])
    rows = [PlannedRow(slot, 1, 4, []) for slot in (0, 1)]
    plans = [plan_rows(2, rows, windows=[window]), plan_rows(3, rows)]
    said = [rows_of(runner.execute(plan)) for plan in plans]
    assert [[row.error for row in step] for step in said] == [[None, None]] * 2
    assert [[row.num_accepted_tokens for row in step] for step in said] == [[0, 4], [4, 4]]
