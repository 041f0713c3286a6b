"""Speculation is never slower than none by more than 2 %, and faster where drafts are worth it.

The worker's times are made up; what it drafts is right three times in four, or never. Proposers say
what is, or claim too much or too little.
"""

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.drafter import Drafter
from tests.scheduler.fake_worker import expected_output
from tests.scheduler.situation import Situation, run_plan, window_of

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


@cache
def plain_rate(num_rows: int, us_per_token: int) -> float:
    return measure(num_rows, us_per_token, [], is_right=True, num_speculative_tokens=0)


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
    plain = plain_rate(num_rows, us_per_token)
    assert rate > 0.98 * plain
    if is_right and us_per_token == 2 and draft_us[0] < 200:
        assert rate > 1.3 * plain


PROPOSERS = {
    # What is right, the chance that each token is the one, and what is claimed of it.
    "right and sure": (1.0, 1.0),
    "right and modest": (1.0, 0.3),
    "wrong and sure": (0.0, 1.0),
    "wrong and modest": (0.0, 0.3),
    "as often right as it says": (0.8, 0.8),
    "half right and sure": (0.5, 1.0),
    "right and silent": (1.0, None),
}


def propose(
    situation: Situation, handle: int, truth: list[int], right: float, claim: float | None
) -> None:
    """Sets a window where the output is, of whose tokens some are right."""
    base = len(situation.text(handle))
    tokens = truth[base : base + 32]
    random = Random(1000 * handle + base)
    nodes = [
        ((token + (random.random() >= right)) % 50, place - 1, base + place)
        for place, token in enumerate(tokens)
    ]
    values = [] if claim is None else [claim ** (place + 1) for place in range(len(tokens))]
    situation.scheduler.set_window(f"r{handle}", window_of(base, nodes, values))


def measure_windows(
    num_rows: int, us_per_token: int, right: float, claim: float | None, **values: Any
) -> float:
    """Returns the tokens per microsecond of the second to the fourth round of requests."""
    costs = [(2**i, pass_us(2**i, us_per_token)) for i in range(9)]
    situation = Situation(
        costs,
        max_model_len=200,
        num_blocks=2000,
        max_num_seqs=num_rows,
        max_num_batched_tokens=256,
        max_num_waiting=64,
        draft_width="goodput",
        **values,
    )
    truths: dict[int, list[int]] = {}
    time, num_tokens = 0.0, 0
    for handle in range(4 * num_rows):
        prompt = [*PROMPT, handle % 50]
        truths[handle] = expected_output(prompt, 50, len(prompt) + NUM_TOKENS, set())
        situation.add(handle, prompt, NUM_TOKENS, predicted_token_ids=truths[handle])
    while situation.scheduler.num_running or situation.scheduler.num_waiting:
        for request_id in situation.scheduler.find_unaligned():
            handle = int(request_id[1:])
            propose(situation, handle, truths[handle], right, claim)
        situation.fill()
        result = run_plan(situation)
        step_ns = 1000 * pass_us(result.num_tokens, us_per_token)
        situation.got.take(situation.scheduler.settle(replace(result, step_ns=step_ns)))
        if len(situation.got.ended) >= num_rows:
            time += step_ns / 1000
            num_tokens += int(result.num_emitted_tokens.sum())
    return num_tokens / time


@cache
def plain_rate_of_windows(num_rows: int, us_per_token: int) -> float:
    """Whatever is proposed, nothing of it is verified."""
    return measure_windows(num_rows, us_per_token, 1.0, 1.0, num_speculative_tokens=0)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("us_per_token", [2, 50, 600])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_windows_are_never_slower(proposer: str, us_per_token: int, num_rows: int) -> None:
    right, claim = PROPOSERS[proposer]
    rate = measure_windows(num_rows, us_per_token, right, claim, num_speculative_tokens=16)
    plain = plain_rate_of_windows(num_rows, us_per_token)
    assert rate > 0.98 * plain
    if right == 1 and us_per_token < 600:
        assert rate > 2 * plain
