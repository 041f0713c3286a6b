"""A drafter that fails costs drafts: texts are the same, and no row fails."""

from pathlib import Path
from typing import Any

import pytest

from optimist_worker.core.plan import PlannedRow
from optimist_worker.drafters.guarded import GuardedDrafter
from optimist_worker.runner.runner import Runner
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import admit, blocks_of, generate, go_on, plain_text, plan_rows, run

PROMPT = [5, 9, 300, 17, 44, 44, 8, 130, 77, 201, 3, 90, 6, 15, 99, 250, 31, 12, 60, 4, 7]
CASES = [
    ("ngram", "drafter", "admit", True),
    ("medusa", "drafter", "observe", True),
    ("draft_model", "drafter", "propose", False),
    ("draft_model", "network", "feed", True),
    ("eagle", "network", "begin", True),
    ("eagle", "network", "observe", False),
]
"""Drafter, whose method fails, which one, and whether sizes are read."""


def guarded_of(runner: Runner) -> GuardedDrafter:
    drafter = runner.engine.drafter
    assert drafter is not None
    return drafter


class Failing:
    """Lets a method fail at each third call."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._call, self.num_calls = getattr(owner, name), 0
        patch.setattr(owner, name, self)

    def __call__(self, *arguments: Any) -> Any:
        self.num_calls += 1
        if self.num_calls % 3 == 0:
            raise IndexError("for the test")
        return self._call(*arguments)


@pytest.mark.parametrize(("way", "owner", "name", "reads_sizes"), CASES)
def test_texts_are_the_same(
    llama: Runner,
    llama_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    owner: str,
    name: str,
    reads_sizes: bool,
) -> None:
    runner = drafting_runner(
        llama_path, way, SHAPES["chain"], reads_sizes=reads_sizes, most_tokens=512
    )
    drafter: Any = guarded_of(runner).guarded
    failing = Failing(monkeypatch, drafter if owner == "drafter" else drafter._network, name)
    for prompt in (PROMPT, PROMPT[1:], PROMPT):
        assert generate(runner, prompt, 20, width=4) == plain_text(llama, prompt, 20)
    assert guarded_of(runner).num_failures == failing.num_calls // 3 > 0


def test_a_row_that_was_not_observed_is_drafted_for_no_more(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = drafting_runner(llama_path, "itself", SHAPES["chain"])
    rows = [PlannedRow(slot, len(PROMPT), 4, blocks_of(slot)) for slot in (0, 1)]
    run(runner, plan_rows(1, rows[:1], admissions=[admit(0, PROMPT)]))
    assert go_on(runner, 4).num_accepted_tokens == 4
    with monkeypatch.context() as patch:
        drafter = guarded_of(runner).guarded

        def fail(_: object) -> None:
            raise RuntimeError("for the test")

        patch.setattr(drafter, "observe", fail)
        for _ in range(20):
            go_on(runner)
    assert go_on(runner, 4).num_drafted_tokens == 0
    # Another row is drafted for, and the same slot is when another request takes it.
    run(runner, plan_rows(3, rows[1:], admissions=[admit(1, PROMPT)]))
    assert go_on(runner, 4, slot=1).num_accepted_tokens == 4
    run(runner, plan_rows(5, rows[:1], released_slots=[0], admissions=[admit(0, PROMPT)]))
    assert go_on(runner, 4).num_accepted_tokens == 4
    assert guarded_of(runner).num_failures == 20
    # The 1st, 2nd, 4th, 8th and 16th.
    assert len([one for one in caplog.messages if "no drafts of draft_model" in one]) == 5
