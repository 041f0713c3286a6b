"""Speculation is never slower than none by more than 2 %, and faster where drafts are worth it.

The worker's times are made up; what it drafts is right three times in four, or never.
"""

from dataclasses import replace
from typing import Any

import pytest

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.drafter import Drafter
from tests.scheduler.situation import Situation, run_plan

NUM_TOKENS = 150
PROMPT = [1, 2]


def pass_us(num_tokens: int, us_per_token: int) -> int:
    return 1000 + us_per_token * num_tokens


def measure(
    num_rows: int, us_per_token: int, draft_us: list[int], is_right: bool, **values: Any
) -> float:
    """Returns the tokens per microsecond of three rounds of requests."""
    costs = [(2**i, pass_us(2**i, us_per_token)) for i in range(9)]
    situation = Situation(
        costs,
        draft_us,
        max_model_len=200,
        num_blocks=2000,
        max_num_seqs=num_rows,
        max_num_batched_tokens=256,
        max_num_waiting=64,
        draft_width="goodput",
        **values,
    )
    if not is_right:
        situation.worker._guess = lambda *_: [[-1]]  # type: ignore[method-assign]
    drafter, time = situation.config.drafter, 0.0
    for handle in range(3 * num_rows):
        situation.add(handle, [*PROMPT, handle % 50], NUM_TOKENS)
    while situation.scheduler.num_running or situation.scheduler.num_waiting:
        situation.fill()
        result = run_plan(situation)
        draft_ns = 0
        served = result.num_drafted_tokens[result.draft_sources > DraftSource.PREDICTION]
        if drafter is not None and len(served):
            draft_ns = 1000 * draft_us[int(drafter.count_levels(served).max()) - 1]
        step_ns = 1000 * pass_us(result.num_tokens, us_per_token) + draft_ns
        result = replace(result, step_ns=step_ns, draft_ns=draft_ns)
        situation.got.take(situation.scheduler.settle(result))
        time += step_ns / 1000
    return 3 * num_rows * NUM_TOKENS / time


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("us_per_token", [2, 200])
@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize(
    ("drafter", "draft_us"),
    [
        (Drafter(DraftSource.DRAFT_MODEL, 4, 4), [150, 300, 450, 600]),
        (Drafter(DraftSource.DRAFT_MODEL, 4, 4), [900, 1800, 2700, 3600]),
        (Drafter(DraftSource.MEDUSA, 9, 3), [100, 100, 100]),
    ],
)
def test_drafting_is_never_slower(
    drafter: Drafter, draft_us: list[int], is_right: bool, us_per_token: int, num_rows: int
) -> None:
    rate = measure(
        num_rows, us_per_token, draft_us, is_right, drafter=drafter, num_speculative_tokens=16
    )
    plain = measure(num_rows, us_per_token, [], is_right, num_speculative_tokens=0)
    assert rate > 0.98 * plain
    if is_right and us_per_token == 2 and draft_us[0] < 200:
        assert rate > 1.3 * plain
