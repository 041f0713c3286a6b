"""Bugs of other engines that concern ends, memory, widths and accounts, each provoked here.

What is not here, and why, stands in test_known_bugs.py.
"""

from dataclasses import asdict, replace

import numpy as np
import pytest

from optimist_scheduler.core.results.read import ResultError
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.values import FinishReason
from tests.scheduler.drive import NOW, rows
from tests.scheduler.situation import Situation, run_plan

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
AHEAD = pytest.mark.parametrize("depth", [2, 3])


@DEPTHS
def test_vllm_47616_a_stop_token_in_the_middle_of_the_window_with_usage(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.add(9, [1, 2], 12)[2]
    situation.abort(9)
    expected = situation.add_predicted(0, [1, 2], 10, stop_token_ids=[stop])
    assert expected.index(stop) == len(expected) - 1 == 2
    situation.fill()
    outputs = situation.answer()
    assert rows(outputs) == {0: expected}
    assert outputs.num_accepted_tokens.tolist() == [3]
    situation.finish()
    finished = situation.finished(0)
    assert finished.reason is FinishReason.STOP
    assert finished.accepted_prediction_tokens == 3
    # The fourth draft was accepted by the worker, and never delivered.
    assert finished.rejected_prediction_tokens == 1
    assert finished.num_passes == 1


@DEPTHS
@pytest.mark.parametrize("place", range(5))
def test_every_token_is_checked_for_the_end_and_not_the_last_only(depth: int, place: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.add(9, [1, 2], 12)[place]
    situation.abort(9)
    expected = situation.add_predicted(0, [1, 2], 10, stop_token_ids=[stop])
    assert len(expected) == place + 1
    situation.finish()
    assert situation.finished(0).reason is FinishReason.STOP
    assert situation.finished(0).num_passes == 1


@AHEAD
@pytest.mark.parametrize("is_predicted", [False, True])
@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_reached_in_flight(depth: int, is_predicted: bool, max_tokens: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    add = situation.add_predicted if is_predicted else situation.add
    add(0, [1, 2], max_tokens)
    num_plans = 0
    while not situation.got.ended:
        while situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            situation.sent.append(plan)
            num_plans += 1
        situation.answer()
    situation.finish()
    assert situation.finished(0).reason is FinishReason.LENGTH
    if not is_predicted:
        # Every step in flight counts: not one is wasted.
        assert num_plans == max_tokens


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
    assert scheduler.num_free_blocks == situation.config.num_blocks
    plan = situation.send()
    assert (plan.released_slots, plan.slots.tolist()) == ([0], [0])
    situation.finish()


@DEPTHS
def test_double_free(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    scheduler, total = situation.scheduler, situation.config.num_blocks
    situation.add(0, [1, 2], 3)
    situation.add(1, [1] * 9, 30)
    situation.add(2, [2] * 9, 30)
    situation.fill()
    situation.abort(1)
    assert scheduler.abort("r1") is None
    while situation.sent:
        situation.answer()
    assert scheduler.abort("r1") is None
    situation.fill()
    # What the worker ends and its client aborts at once is over once.
    situation.abort(2)
    if "r0" in scheduler._requests:
        situation.abort(0)
    scheduler.check_integrity()
    while situation.sent:
        situation.answer()
    assert scheduler.num_free_blocks == total
    assert [scheduler.abort(f"r{handle}") for handle in range(3)] == [None] * 3
    assert scheduler.num_free_blocks == total
    assert scheduler._state.table.num_free_slots == situation.config.max_num_seqs


@pytest.mark.parametrize("num_prompt_tokens", [14, 15, 16, 17])
@pytest.mark.parametrize("num_drafts", [0, 1, 2, 16, 17])
@DEPTHS
def test_a_block_edge_and_k_plus_one_slots(
    num_prompt_tokens: int, num_drafts: int, depth: int
) -> None:
    situation = Situation(
        block_size=16,
        num_speculative_tokens=num_drafts,
        max_num_batched_tokens=64,
        max_plans_in_flight=depth,
        max_model_len=200,
    )
    situation.add_predicted(0, [3] * num_prompt_tokens, 100)
    length = num_prompt_tokens - 1
    for _ in range(depth):
        situation.send()
        # The last token and its drafts: every plan in flight may bring them all.
        length += 1 + num_drafts
        assert situation.scheduler._state.blocks.num_blocks[0] == -(-length // 16)
        assert situation.counters(0)[0] == length
    situation.finish()


@DEPTHS
def test_k_of_zero_for_a_while_and_then_on_again(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_model_len=120)
    situation.add_predicted(0, [1, 2], 100)
    situation.step()
    for width in (0, 4, 0, 2):
        for _ in range(2):
            situation.table.draft_width[0] = width
            situation.fill()
            assert situation.sent[-1].num_draft_tokens.tolist() == [width]
            while situation.sent:
                situation.answer()
            assert situation.counters(0) == (1 + len(situation.text(0)), 0, 0)
    situation.finish()
    # All drafts were right: whatever was skipped, none was rejected.
    assert situation.finished(0).rejected_prediction_tokens == 0


@pytest.mark.parametrize("policy", ["goodput", "crossover", "adaptive"])
def test_vllm_49548_prefills_beside_do_not_bring_the_widths_down(policy: str) -> None:
    situation = Situation(
        draft_width=policy,
        max_model_len=600,
        num_blocks=600,
        max_num_batched_tokens=64,
        max_num_waiting=99,
    )
    situation.add_predicted(0, [1, 2], 400)
    for handle in range(1, 60):
        situation.add(handle, [handle % 50] * 90, 1)
    num_beside = 0
    for _ in range(60):
        plan = situation.step()
        num_beside += plan.num_known_tokens.sum() > 20
        place = plan.slots.tolist().index(0)
        assert plan.num_draft_tokens[place] == 4
    assert num_beside > 40


@DEPTHS
def test_a_proposer_that_failed_means_plain_decode(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    expected = situation.add(0, [1, 2], 12, predicted_token_ids=[1, 2, 3])
    while situation.scheduler.num_running + situation.scheduler.num_waiting:
        assert situation.scheduler.find_unaligned() == ["r0"]
        if situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            assert plan.num_draft_tokens.tolist() == [0]
            situation.sent.append(plan)
        else:
            situation.answer()
    assert situation.text(0) == expected
    finished = situation.finished(0)
    assert (finished.num_passes, finished.accepted_prediction_tokens) == (12, 0)
    assert finished.rejected_prediction_tokens == 0


@DEPTHS
@pytest.mark.parametrize("token_id", [-1, 50, 2**31 - 1])
def test_ghsa_8wr5_jm2h_8r4f_an_emitted_id_at_or_above_the_vocabulary_size(
    depth: int, token_id: int
) -> None:
    situation = Situation(max_plans_in_flight=depth)
    expected = situation.add_predicted(0, [1, 2], 12)
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
    assert situation.text(0) == expected[:5]
    situation.finish()


def columns(scheduler: Scheduler) -> np.ndarray:
    """Returns a copy of everything the table holds in columns."""
    table = scheduler._state.table
    names = [name for name in type(table).__annotations__ if hasattr(table, name)]
    return np.concatenate([getattr(table, name) for name in names] + [table.token_ids.ravel()])


@AHEAD
def test_sglang_15690_statistics_are_not_polluted_by_finished_requests(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=1, draft_width="goodput")
    situation.add_predicted(0, [1, 2], 30)
    situation.propose(0, wrong_at=0)
    situation.fill()
    finished = situation.abort(0)
    rates = situation.scheduler._state.widths._calibration
    rate = rates.rate(np.array([0], np.int32))[0]
    while situation.sent:
        situation.answer()
    # What came after the end moved nothing that is known of the slot's drafts.
    assert (finished.num_passes, finished.rejected_prediction_tokens) == (0, 0)
    assert rates.rate(np.array([0], np.int32))[0] == rate
    situation.add_predicted(1, [3], 9)
    situation.finish()
    assert situation.finished(1).accepted_prediction_tokens > 0
    assert situation.finished(1).rejected_prediction_tokens == 0


@DEPTHS
def test_sglang_18848_statistics_are_not_polluted_by_stale_results(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, [1, 2], 40)
    situation.fill()
    result = run_plan(situation)
    scheduler = situation.scheduler
    situation.got.take(scheduler.settle(result))
    before, stats = columns(scheduler), asdict(scheduler.stats)
    costs = scheduler._state.costs.cost([1, 5, 20]).tolist()
    slow = replace(result, step_ns=10**12)
    for number in range(1, 4):
        outputs = scheduler.settle(slow)
        assert len(outputs.handles) == len(outputs.ended) == 0
        assert asdict(scheduler.stats) == {**stats, "num_late_results": number}
    assert np.array_equal(columns(scheduler), before)
    assert scheduler._state.costs.cost([1, 5, 20]).tolist() == costs
    situation.finish()


@DEPTHS
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 7])
def test_a_prediction_longer_than_what_may_still_be_generated(depth: int, max_tokens: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    longer = situation.add(9, [1, 2], 60)
    situation.abort(9)
    situation.add(0, [1, 2], max_tokens, predicted_token_ids=longer)
    situation.propose(0)
    while not situation.got.ended:
        while situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            situation.sent.append(plan)
            # Neither the block table nor the counters go beyond the limit.
            assert situation.counters(0)[0] <= 2 + max_tokens + depth - 1
        situation.answer()
    situation.finish()
    assert situation.finished(0).reason is FinishReason.LENGTH
    assert situation.finished(0).rejected_prediction_tokens == 0
    assert situation.finished(0).accepted_prediction_tokens <= max_tokens - 1


@DEPTHS
def test_a_preemption_does_not_fold_the_output_into_the_prompt(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, num_blocks=10, max_num_seqs=4)
    for handle in range(4):
        situation.add(handle, [handle, 1, 2], 20)
    num_again = 0
    while situation.scheduler.num_running + situation.scheduler.num_waiting:
        while situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            situation.sent.append(plan)
            for admission in plan.admissions:
                num_output = len(admission.token_ids) - 3
                num_again += num_output > 0
                assert num_output == len(situation.text(admission.request.handle))
                assert admission.request.num_prompt_tokens == 3
                assert admission.request.max_length == 23
        situation.answer()
    assert num_again > 0
    situation.finish()
    for handle in range(4):
        assert len(situation.text(handle)) == 20
