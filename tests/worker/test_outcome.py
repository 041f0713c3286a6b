"""Requests that end, rows of ended requests, and plans that run again."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Plan, PlannedRow, StepResult, WindowUpdate, plan_repeat
from optimist_worker.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    RowResult,
    admit,
    blocks_of,
    generate,
    plan_rows,
    rows_of,
    run,
)

PROMPT = random.Random(8).choices(range(3, VOCAB_SIZE), k=20)
SAMPLED = SamplingParams(temperature=0.8, seed=11)


def first_rows(slot: int = 0, drafts: int = 0) -> list[PlannedRow]:
    return [PlannedRow(slot, len(PROMPT), drafts, blocks_of(slot))]


def decode(sequence: int, slots: tuple[int, ...] = (0,), drafts: int = 0) -> Plan:
    return plan_rows(sequence, [PlannedRow(slot, 1, drafts, []) for slot in slots])


def run_all(runner: Runner, plan: Plan) -> list[StepResult]:
    """Runs a plan as often as it may be."""
    results = []
    next_plan: Plan | None = plan
    while next_plan is not None:
        results.append(runner.execute(next_plan))
        next_plan = plan_repeat(next_plan, results[-1])
    return results


def distinct_truth(runner: Runner, number: int) -> list[int]:
    truth = generate(runner, PROMPT, number, sampling=SAMPLED)
    assert len(set(truth)) == number
    return truth


def test_a_stop_token_ends_the_request(llama: Runner) -> None:
    truth = distinct_truth(llama, 12)
    llama.release_all()
    admission = admit(0, PROMPT, SAMPLED, stop_token_ids=[truth[2], 999])
    run(llama, plan_rows(1, first_rows(), admissions=[admission]))
    rows = [run(llama, decode(i))[0] for i in range(2, 6)]
    assert [row.token_ids for row in rows] == [truth[1:2], truth[2:3], [], []]
    assert rows[2:] == [RowResult(0, 23, [], 0, 0, None)] * 2


def test_tokens_accepted_behind_a_stop_token_are_still_told(llama: Runner) -> None:
    truth = distinct_truth(llama, 12)
    llama.release_all()
    admission = admit(0, PROMPT, SAMPLED, stop_token_ids=[truth[2]])
    window = WindowUpdate(0, 0, truth)
    plan = plan_rows(1, first_rows(drafts=5), admissions=[admission], windows=[window])
    assert run(llama, plan) == [RowResult(0, 26, truth[:6], 5, 5, None)]
    assert run(llama, decode(2, drafts=5)) == [RowResult(0, 26, [], 0, 0, None)]


@pytest.mark.parametrize(("min_length", "num_tokens"), [(22, 2), (23, 9)])
def test_a_stop_token_before_min_length_ends_nothing(
    min_length: int, num_tokens: int, llama: Runner
) -> None:
    truth = distinct_truth(llama, 9)
    llama.release_all()
    admission = admit(
        0, PROMPT, SAMPLED, stop_token_ids=[truth[1]], min_length=min_length, max_length=29
    )
    output = run(llama, plan_rows(1, first_rows(), admissions=[admission]))[0].token_ids
    for sequence in range(2, 14):
        output = output + run(llama, decode(sequence))[0].token_ids
    # The stop token makes a text of 22 tokens.
    assert output == truth[:num_tokens]


def test_no_draft_leads_past_max_length(llama: Runner) -> None:
    truth = distinct_truth(llama, 12)
    llama.release_all()
    window = WindowUpdate(0, 0, truth)
    admission = admit(0, PROMPT, SAMPLED, max_length=26)
    plan = plan_rows(1, first_rows(drafts=2), admissions=[admission], windows=[window])
    assert run(llama, plan) == [RowResult(0, 23, truth[:3], 2, 2, None)]
    assert run(llama, decode(2, drafts=9)) == [RowResult(0, 26, truth[3:6], 2, 2, None)]
    assert run(llama, decode(3, drafts=9)) == [RowResult(0, 26, [], 0, 0, None)]


def test_a_plan_of_ended_requests_runs_no_pass(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = admit(0, PROMPT, max_length=21)
    run(llama, plan_rows(1, first_rows(), admissions=[admission]))
    monkeypatch.setattr(llama.model.module, "forward", None)
    plan = decode(2, drafts=3)._replace(num_repeats=5)
    (result,) = run_all(llama, plan)
    assert (result.num_tokens, result.num_live_rows) == (0, 0)
    assert rows_of(result) == [RowResult(0, 21, [], 0, 0, None)]


def test_repeats_go_on_until_the_limit(llama: Runner) -> None:
    truth = distinct_truth(llama, 12)
    llama.release_all()
    run(llama, plan_rows(1, first_rows(), admissions=[admit(0, PROMPT, SAMPLED)]))
    results = run_all(llama, decode(2)._replace(num_repeats=4))
    assert [(result.sequence, result.repeat) for result in results] == [(2, i) for i in range(5)]
    assert [rows_of(result)[0].token_ids for result in results] == [[t] for t in truth[1:6]]
    assert [result.num_tokens for result in results] == [1] * 5
    assert len(run_all(llama, decode(3))) == 1


def test_repeats_end_when_every_request_has(llama: Runner) -> None:
    truth = distinct_truth(llama, 12)
    llama.release_all()
    admissions = [
        admit(0, PROMPT, SAMPLED, stop_token_ids=[truth[2]]),
        admit(1, PROMPT, SAMPLED, max_length=25),
    ]
    rows = first_rows(0) + first_rows(1)
    results = run_all(llama, plan_rows(1, rows, admissions=admissions, num_repeats=63))
    outputs = [[row.token_ids for row in rows_of(result)] for result in results]
    first = [truth[:1], truth[1:2], truth[2:3], [], []]
    assert outputs == [[a, [b]] for a, b in zip(first, truth[:5], strict=True)]
    assert [result.num_live_rows for result in results] == [2, 2, 1, 1, 0]
    assert results[3].lengths.tolist() == [23, 24]


def test_a_row_that_failed_is_not_run_again(llama: Runner) -> None:
    expected = generate(llama, PROMPT, 3)
    llama.release_all()
    admissions = [admit(0, PROMPT), admit(1, [VOCAB_SIZE])]
    rows = [*first_rows(0), PlannedRow(1, 1, 0, blocks_of(1)), PlannedRow(2, 1, 0, [])]
    results = run_all(llama, plan_rows(1, rows, admissions=admissions, num_repeats=2))
    assert [sorted(result.errors) for result in results] == [[1, 2], [], []]
    outputs = [[row.token_ids for row in rows_of(result)] for result in results]
    assert outputs == [[[token], [], []] for token in expected]
    assert results[2].lengths.tolist() == [23, 1, 0]


def test_nothing_is_repeated_when_all_rows_failed(llama: Runner) -> None:
    (result,) = run_all(llama, decode(1, slots=(0, 1))._replace(num_repeats=9))
    assert len(result.errors) == 2


def test_a_repeat_that_runs_out_of_blocks_fails_its_row(llama: Runner) -> None:
    rows = [PlannedRow(0, len(PROMPT), 0, blocks_of(0, 2))]
    plan = plan_rows(1, rows, admissions=[admit(0, PROMPT)], num_repeats=63)
    results = run_all(llama, plan)
    # The pool of 32 tokens gives 33, because the last needs no keys yet.
    assert results[-1].lengths.tolist() == [2 * BLOCK_SIZE + 1]
    assert "too few blocks" in results[-1].errors[0]
    assert all(not result.errors for result in results[:-1])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    wrong_at=st.sets(st.integers(0, 25)),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=5, max_size=12),
    stop_at=st.none() | st.integers(0, 25),
    max_tokens=st.integers(2, 25),
)
def test_tokens_do_not_depend_on_how_they_were_planned(
    llama: Runner,
    wrong_at: set[int],
    steps: list[tuple[int, int]],
    stop_at: int | None,
    max_tokens: int,
) -> None:
    """Plans with any drafts and repeats, sent on to ended requests, give the one true text."""
    truth = generate(llama, PROMPT, 26, sampling=SAMPLED)
    stops = [] if stop_at is None else [truth[stop_at]]
    ends = [i + 1 for i, token in enumerate(truth) if token in stops]
    end = min([*ends, max_tokens])
    llama.release_all()
    guess = [3 if i in wrong_at else token for i, token in enumerate(truth)]
    max_length = len(PROMPT) + max_tokens
    admission = admit(0, PROMPT, SAMPLED, max_length=max_length, stop_token_ids=stops)
    window = WindowUpdate(0, 0, guess)
    plan = plan_rows(0, first_rows(drafts=2), admissions=[admission], windows=[window])
    output = run(llama, plan)[0].token_ids
    for sequence, (drafts, num_repeats) in enumerate(steps, 1):
        window = WindowUpdate(0, len(output), guess[len(output) :])
        plan = decode(sequence, drafts=drafts)._replace(num_repeats=num_repeats, windows=[window])
        for result in run_all(llama, plan):
            (row,) = rows_of(result)
            assert row.error is None
            assert row.num_drafted_tokens <= drafts
            had_ended = len(output) >= end
            assert (result.num_tokens == 0) == had_ended
            assert (row.token_ids == []) == had_ended
            output += row.token_ids
            assert row.length == len(PROMPT) + len(output) <= MAX_MODEL_LEN
    assert len(output) <= max_tokens
    assert output == truth[: len(output)]
    assert len(output) >= min(end, len(steps) + 1)
