"""Bugs of other engines, each provoked here; `Situation` checks texts, counters and blocks.

Those of placeholders, preemption, stages, late results, and ends in flight or in the middle of a
window are in test_random_commands.py.
Not here: grammar, log-probabilities, sampling (the worker's tests), draft models (the drafters'),
CR LF, content parts, n > 1 and stop strings (the gateway's): this scheduler knows token ids only.
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from optimist_scheduler.core.base.values import FinishReason
from optimist_scheduler.core.results.read import ResultError
from tests.scheduler.situation import Situation, columns, ints, rows, run_plan

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
AHEAD = pytest.mark.parametrize("depth", [2, 3])
PROMPT = [1, 2]


# Ends.


@AHEAD
def test_mini_sglang_a_token_after_the_end_from_the_overshooting_step(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.foresee(PROMPT, 1)
    situation.add(1, PROMPT, 30, stop_token_ids=stop)
    situation.fill()
    situation.answer()
    assert situation.finished(1).reason is FinishReason.STOP
    for number in range(1, depth):
        # A worker that does not know the stop token has gone on.
        result = run_plan(situation)
        overshot = replace(
            result,
            lengths=result.lengths + number,
            num_emitted_tokens=result.num_emitted_tokens + 1,
            token_ids=situation.table.token_ids[0, :1].copy(),
        )
        outputs = situation.scheduler.settle(overshot)
        assert len(outputs.handles) == len(outputs.ended) == 0
    situation.finish()


@AHEAD
@pytest.mark.parametrize("is_predicted", [False, True])
@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_reached_in_flight(depth: int, is_predicted: bool, max_tokens: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    longer = situation.foresee(PROMPT, 60)
    situation.add(0, PROMPT, max_tokens, predicted_token_ids=longer if is_predicted else [])
    if is_predicted:
        # A prediction longer than what may still be generated.
        situation.propose(0)
    while not situation.got.ended:
        situation.fill()
        assert situation.counters(0)[0] <= 2 + max_tokens + depth - 1
        situation.answer()
    situation.finish()
    finished = situation.finished(0)
    assert finished.reason is FinishReason.LENGTH
    assert finished.rejected_prediction_tokens == 0
    # Every step in flight counts: without drafts not one is wasted.
    assert is_predicted or situation.scheduler.stats.num_plans == max_tokens


@DEPTHS
def test_an_abort_in_flight_keeps_the_slot_and_frees_the_id(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=1)
    scheduler = situation.scheduler
    situation.add(0, [1], 9)
    situation.fill()
    situation.abort(0)
    situation.add(0, [2], 2)
    while situation.sent:
        assert scheduler.compute_schedule().admitted == []
        assert scheduler.num_free_blocks < situation.config.num_blocks
        assert rows(situation.answer()) == {}
    plan = situation.send()
    assert (plan.released_slots, plan.slots.tolist()) == ([0], [0])
    situation.finish()


# Blocks and widths.


@pytest.mark.parametrize("policy", ["goodput", "crossover", "adaptive"])
def test_vllm_49548_prefills_beside_do_not_bring_the_widths_down(policy: str) -> None:
    sizes: dict[str, Any] = {"max_model_len": 600, "num_blocks": 600, "max_num_batched_tokens": 64}
    situation = Situation(draft_width=policy, max_num_waiting=99, **sizes)
    situation.add_predicted(0, PROMPT, 400)
    for handle in range(1, 60):
        situation.add(handle, [handle % 50] * 90, 1)
    num_beside = 0
    for _ in range(60):
        plan = situation.step()
        num_beside += plan.num_known_tokens.sum() > 20
        assert plan.num_draft_tokens[plan.slots.tolist().index(0)] == 4
    assert num_beside > 40


# Results and statistics.


@DEPTHS
@pytest.mark.parametrize("token_id", [-1, 50, 2**31 - 1])
def test_ghsa_8wr5_jm2h_8r4f_an_emitted_id_at_or_above_the_vocabulary_size(
    depth: int, token_id: int
) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, PROMPT, 12)
    situation.fill()
    before, stats = columns(situation.scheduler), asdict(situation.scheduler.stats)
    result = run_plan(situation)
    for place in range(5):
        wrong = result.token_ids.copy()
        wrong[place] = token_id
        with pytest.raises(ResultError, match="token_ids: not from 0 to 49"):
            situation.scheduler.settle(replace(result, token_ids=wrong))
    assert np.array_equal(columns(situation.scheduler), before)
    assert asdict(situation.scheduler.stats) == stats
    situation.got.take(situation.scheduler.settle(result))
    situation.finish()


@AHEAD
def test_sglang_15690_statistics_are_not_polluted_by_finished_requests(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=1, draft_width="goodput")
    situation.add_predicted(0, PROMPT, 30)
    situation.propose(0, wrong_at=0)
    situation.fill()
    finished = situation.abort(0)
    rates = situation.scheduler._state.widths._calibration
    rate = rates.rate(ints(0))[0]
    situation.settle()
    # What came after the end moved nothing that is known of the slot's drafts.
    assert (finished.num_passes, finished.rejected_prediction_tokens) == (0, 0)
    assert rates.rate(ints(0))[0] == rate
    situation.add_predicted(1, [3], 9)
    situation.finish()
    assert situation.finished(1).accepted_prediction_tokens > 0
    assert situation.finished(1).rejected_prediction_tokens == 0
