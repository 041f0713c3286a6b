"""Bugs of other engines, each provoked here; `Situation` checks texts, counters and blocks.

Those of placeholders, preemption, stages, late results, and ends in flight or in the middle of a
window are in test_random_commands.py.
Not here: grammar, log-probabilities, sampling (the worker's tests), draft models (the drafters'),
CR LF, content parts, n > 1 and stop strings (the gateway's): this scheduler knows token ids only.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.scheduler.situation import Situation, ints, run_plan

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 3])
PROMPT = [1, 2]


# Ends.


@DEPTHS
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_no_step_is_planned_behind_max_tokens_reached_in_flight(
    depth: int, max_tokens: int
) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add(0, PROMPT, max_tokens)
    situation.finish()
    assert situation.scheduler.stats.num_plans == max_tokens


@DEPTHS
def test_an_abort_in_flight_frees_the_id_before_the_slot(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=1)
    situation.add(0, [1], 9)
    situation.fill()
    situation.abort(0)
    situation.add(0, [2], 2)
    assert situation.scheduler.compute_schedule().admitted == []
    situation.finish()


# Blocks and widths.


@pytest.mark.parametrize("policy", ["goodput", "fixed"])
def test_vllm_49548_prefills_beside_do_not_bring_the_widths_down(policy: str) -> None:
    sizes: dict[str, Any] = {"max_model_len": 600, "num_blocks": 600, "max_num_batched_tokens": 64}
    situation = Situation(draft_width=policy, max_num_waiting=99, **sizes)
    situation.add_predicted(0, PROMPT, 400)
    for handle in range(1, 60):
        situation.add(handle, [handle % 50] * 90, 1)
    num_beside = 0
    situation.step()
    for _ in range(60):
        plan = situation.step()
        num_beside += plan.num_known_tokens.sum() > 20
        assert plan.num_draft_tokens[plan.slots.tolist().index(0)] == 4
    assert num_beside > 40


# Results and statistics.


@DEPTHS
@pytest.mark.parametrize("token_id", [-1, 50])
def test_ghsa_8wr5_jm2h_8r4f_an_emitted_id_at_or_above_the_vocabulary_size(
    depth: int, token_id: int
) -> None:
    for place in (0, 3):
        situation = Situation(max_plans_in_flight=depth)
        situation.add_predicted(0, PROMPT, 12)
        situation.add(1, PROMPT, 12)
        situation.fill()
        result = run_plan(situation)
        wrong = result.token_ids.copy()
        wrong[place] = token_id
        situation.settle_wrong(replace(result, token_ids=wrong), "token_ids: not from 0 to 49")
        assert list(situation.got.ended) == [0]
        situation.finish()


@DEPTHS
def test_sglang_15690_statistics_are_not_polluted_by_finished_requests(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=1, draft_width="goodput")
    situation.add_predicted(0, PROMPT, 30)
    situation.propose(0, wrong_at=0)
    situation.fill()
    finished = situation.abort(0)
    widths = situation.scheduler._state.widths
    rate = widths.windows.rate(ints(0))[0]
    situation.settle()
    # What came after the end moved nothing that is known of the slot's drafts.
    assert (finished.num_passes, finished.rejected_prediction_tokens) == (0, 0)
    assert widths.windows.rate(ints(0))[0] == rate
    situation.add_predicted(1, [3], 9)
    situation.finish()
    assert situation.finished(1).accepted_prediction_tokens > 0
    assert situation.finished(1).rejected_prediction_tokens == 0
