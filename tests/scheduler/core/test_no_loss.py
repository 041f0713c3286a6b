"""Speculation is never slower than none by more than 2 %, and faster where drafts are worth it.

The worker's times are made up; what it drafts is right three times in four, or never. Proposers say
what is, or claim too much or too little.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.width.costs import Timings
from tests.scheduler.situation import Situation, run_plan, set_window, window_of

NUM_TOKENS = 150
NUM_PROMPT_TOKENS = 100


def pass_us(num_tokens: int, us_per_token: int) -> int:
    return 1000 + us_per_token * num_tokens


def situation_of(
    num_rows: int, us_per_token: int, draft_us: Sequence[int] = (), **values: Any
) -> Situation:
    num_tokens = [2**i for i in range(9)]
    pass_times = [pass_us(each, us_per_token) for each in num_tokens]
    timings = Timings(num_tokens, pass_times, draft_us)
    values |= {"max_num_seqs": num_rows, "max_num_batched_tokens": 256, "max_num_waiting": 64}
    sizes = {"max_model_len": 300, "num_blocks": 2000, "max_plans_in_flight": 2}
    return Situation(timings, draft_width="goodput", **sizes, **values)


def measure(
    situation: Situation,
    us_per_token: int,
    draft_us: Sequence[int] = (),
    proposer: tuple[float, float | None] | None = None,
) -> float:
    """Returns the tokens per microsecond of some rounds of requests.

    Args:
        situation: With as many rows as there are requests in a round.
        us_per_token: What a token of a pass costs.
        draft_us: What the drafter costs, by its levels.
        proposer: How right it is, and what it claims to be; None for no predictions.
    """
    scheduler, num_rows = situation.scheduler, situation.config.max_num_seqs
    for handle in range(3 * num_rows):
        prompt = [(handle + 7 * place) % 50 for place in range(NUM_PROMPT_TOKENS)]
        prediction = [] if proposer is None else situation.foresee(prompt, NUM_TOKENS)
        is_followed = proposer is not None
        situation.add(
            handle, prompt, NUM_TOKENS, predicted_token_ids=prediction, is_followed=is_followed
        )
    drafter, time, num_tokens = situation.config.drafter, 0.0, 0
    # Proposers answer whom they follow, whether steps wait for that or not.
    while scheduler.num_running or scheduler.num_waiting:
        for slot in scheduler._state.running.tolist():
            if (
                proposer is not None
                and situation.table.window_end[slot] <= situation.table.num_tokens[slot]
            ):
                propose(situation, int(situation.table.request_ids[slot][1:]), *proposer)
        situation.fill()
        result = run_plan(situation)
        draft_ns = 0
        served = result.num_drafted_tokens[result.draft_sources > DraftSource.PREDICTION]
        if drafter is not None and len(served):
            draft_ns = 1000 * draft_us[int(drafter.count_levels(served).max()) - 1]
        step_ns = 1000 * pass_us(result.num_tokens, us_per_token) + draft_ns
        result = replace(result, step_ns=step_ns, draft_ns=draft_ns)
        situation.got.take(scheduler.settle(result))
        time += step_ns / 1000
        num_tokens += int(result.num_emitted_tokens.sum())
    return num_tokens / time


@cache
def plain_rate(num_rows: int, us_per_token: int, is_predicted: bool) -> float:
    """Whatever is proposed, nothing of it is verified."""
    situation = situation_of(num_rows, us_per_token, num_speculative_tokens=0)
    return measure(situation, us_per_token, proposer=(1.0, 1.0) if is_predicted else None)


CHAIN, TREE = Drafter(DraftSource.DRAFT_MODEL, 4, 4), Drafter(DraftSource.MEDUSA, 9, 3)
QUICK, SLOW = [150, 300, 450, 600], [900, 1800, 2700, 3600]


@pytest.mark.parametrize(
    ("drafter", "draft_us", "is_right", "us_per_token", "num_rows"),
    [
        (CHAIN, QUICK, True, 2, 1),
        (CHAIN, QUICK, False, 200, 4),
        (CHAIN, SLOW, True, 200, 4),
        (TREE, [100] * 3, True, 2, 1),
        (TREE, [100] * 3, False, 2, 1),
    ],
)
def test_drafting_is_never_slower(
    drafter: Drafter, draft_us: list[int], is_right: bool, us_per_token: int, num_rows: int
) -> None:
    situation = situation_of(
        num_rows, us_per_token, draft_us, drafter=drafter, num_speculative_tokens=16
    )
    if not is_right:
        situation.worker._guess = lambda *_: [[-1]]  # type: ignore[method-assign]
    rate = measure(situation, us_per_token, draft_us)
    plain = plain_rate(num_rows, us_per_token, is_predicted=False)
    assert rate > 0.98 * plain
    if is_right and us_per_token == 2 and draft_us[0] < 200:
        assert rate > 1.3 * plain


def propose(situation: Situation, handle: int, right: float, claim: float | None) -> None:
    """Sets a window where the output is, of whose tokens some are right."""
    base = len(situation.text(handle))
    tokens = situation.expected[handle][base : base + 32]
    random = Random(1000 * handle + base)
    nodes = [
        ((token + (random.random() >= right)) % 50, place - 1, base + place)
        for place, token in enumerate(tokens)
    ]
    values = [] if claim is None else [claim ** (place + 1) for place in range(len(tokens))]
    set_window(situation.scheduler, f"r{handle}", window_of(base, nodes, values))


@pytest.mark.parametrize(
    ("right", "claim", "us_per_token", "num_rows"),
    [
        # The chance that each token is the one, and what is claimed of it.
        (1.0, 1.0, 2, 4),
        (1.0, 0.3, 50, 1),
        (1.0, None, 600, 4),
        (0.0, 1.0, 50, 1),
        (0.0, 0.3, 600, 4),
        (0.8, 0.8, 2, 4),
        (0.5, 1.0, 600, 4),
    ],
)
def test_windows_are_never_slower(
    right: float, claim: float | None, us_per_token: int, num_rows: int
) -> None:
    situation = situation_of(num_rows, us_per_token, num_speculative_tokens=16)
    rate = measure(situation, us_per_token, proposer=(right, claim))
    plain = plain_rate(num_rows, us_per_token, is_predicted=True)
    assert rate > 0.98 * plain
    if right == 1 and us_per_token < 600:
        assert rate > 2 * plain
