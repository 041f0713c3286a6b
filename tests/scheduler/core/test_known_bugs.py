"""Bugs of other engines, each provoked here; `Situation` checks texts, counters and blocks.

Not here: grammar, log-probabilities, sampling (the worker's tests), draft models (the drafters'),
CR LF, content parts, n > 1 and stop strings (the gateway's): this scheduler knows token ids only.
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from optimist_scheduler.core.base.values import FinishReason
from optimist_scheduler.core.requests.table import SlotStatus
from optimist_scheduler.core.results.read import ResultError
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.gateways.commands import stats_message
from optimist_scheduler.proposers.links import WindowWaits
from tests.scheduler.situation import NOW, Situation, columns, ints, make_window, rows, run_plan

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
AHEAD = pytest.mark.parametrize("depth", [2, 3])
PROMPT = [1, 2]


def predicted(depth: int, max_tokens: int = 30, **values: Any) -> Situation:
    """A request with a right window, and as many plans in flight as may be."""
    situation = Situation(max_plans_in_flight=depth, **values)
    situation.add_predicted(0, PROMPT, max_tokens)
    situation.fill()
    return situation


# Placeholders and plans in flight.


@DEPTHS
def test_vllm_46669_placeholders_after_a_scheduling_gap(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, PROMPT, 30)
    situation.propose(0, wrong_at=1)
    situation.fill()
    situation.scheduler.pause(PauseMode.KEEP)
    situation.settle()
    assert situation.counters(0) == (1 + len(situation.text(0)), 0, 0)
    situation.scheduler.resume()
    situation.propose(0)
    plan = situation.send()
    assert (plan.num_known_tokens.tolist(), plan.num_draft_tokens.tolist()) == ([1], [4])
    situation.finish()


@DEPTHS
def test_vllm_40768_placeholders_when_a_request_is_added_again(depth: int) -> None:
    situation = predicted(depth, max_num_seqs=1)
    situation.abort(0)
    situation.settle()
    situation.add(0, [1, 2, 3], 30)
    plan = situation.send()
    # The same slot and the same id, and nothing of what was in flight before.
    assert (plan.released_slots, plan.slots.tolist()) == ([0], [0])
    assert situation.counters(0) == (3, 1, 3)
    situation.finish()


@DEPTHS
def test_vllm_37159_placeholders_when_the_worker_comes_back(depth: int) -> None:
    situation = predicted(depth)
    assert situation.counters(0)[1] == 5 * depth
    situation.lose_worker()
    assert situation.send().num_known_tokens.tolist() == [2]
    assert situation.counters(situation.slot(0)) == (6, 5, 6)
    situation.finish()


@DEPTHS
def test_k_changed_between_schedule_and_output(depth: int) -> None:
    situation = predicted(depth)
    # What is taken back is what was planned, whatever the window and the width are by now.
    situation.scheduler.set_window("r0", make_window(0, 0, situation.expected[0][:1]))
    situation.table.draft_width[0] = 2
    situation.settle()
    assert situation.counters(0) == (2 + 5 * depth - 1, 0, 0)
    situation.finish()


@AHEAD
def test_vllm_42722_an_empty_row_with_drafts_of_an_ended_request(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.foresee(PROMPT, 30)[2]
    expected = situation.add_predicted(1, PROMPT, 30, stop_token_ids=[stop])
    situation.fill()
    slot = situation.slot(1)
    assert rows(situation.answer()) == {1: expected}
    assert situation.table.status[slot] == SlotStatus.ENDED
    while situation.sent:
        assert situation.sent[0].num_draft_tokens.tolist() == [4]
        assert rows(situation.answer()) == {}
    situation.finish()


@DEPTHS
def test_vllm_42722_an_empty_row_with_drafts_of_a_request_that_fails(depth: int) -> None:
    situation = predicted(depth)
    situation.add_predicted(1, [3], 30)
    situation.worker.failing.add("r0")
    del situation.expected[0]
    (ended,) = situation.answer().ended
    assert (ended.handle, ended.finished.reason) == (0, FinishReason.ERROR)
    situation.finish()
    assert situation.text(0) == []


@AHEAD
def test_vllm_30142_a_result_comes_after_the_preemption(depth: int) -> None:
    situation = Situation(
        max_plans_in_flight=depth, policy="priority", max_num_seqs=1, num_blocks=16
    )
    expected = situation.add_predicted(0, PROMPT, 30, priority=5)
    situation.fill()
    situation.answer()
    situation.add(1, [3], 3, priority=0)
    # Preempting sends no rows; the plans in flight go on and what they bring is delivered.
    assert situation.scheduler.schedule(NOW) is None
    assert situation.table.status[situation.slot(0)] == SlotStatus.LEAVING
    for number in range(2, depth + 1):
        assert rows(situation.answer()) == {0: expected[5 * number - 5 : 5 * number]}
    (admission,) = situation.send().admissions
    assert admission.request.request_id == "r1"
    situation.finish()
    assert situation.worker.admitted == ["r0", "r1", "r0"]


@DEPTHS
@pytest.mark.parametrize("is_predicted", [False, True])
def test_vllm_46066_repeated_preemption(depth: int, is_predicted: bool) -> None:
    situation = Situation(max_plans_in_flight=depth, num_blocks=10, max_num_seqs=4)
    for handle in range(6):
        add = situation.add_predicted if is_predicted else situation.add
        add(handle, [handle, 1, 2], 30)
    situation.finish()
    readmitted = [situation.worker.admitted.count(f"r{handle}") - 1 for handle in range(6)]
    assert sum(readmitted) == situation.scheduler.stats.num_preemptions >= 3
    assert max(readmitted) >= 2


@pytest.mark.parametrize(("num_slots", "num_prompt_tokens"), [(2, 20), (1, 1)])
def test_vllm_28558_drafts_of_a_request_preempted_in_the_same_schedule_call(
    num_slots: int, num_prompt_tokens: int
) -> None:
    situation = Situation(policy="priority", max_num_seqs=num_slots, num_blocks=12)
    if num_slots == 2:
        # It is preempted for its blocks, and otherwise for its slot.
        situation.add(0, [9], 20, priority=0)
    situation.add_predicted(1, PROMPT, 30, priority=5)
    situation.step()
    slot = situation.slot(1)
    situation.propose(1)
    situation.add(2, [3] * num_prompt_tokens, 3, priority=1)
    assert situation.scheduler.compute_schedule().preempted.tolist() == [slot]
    plan = situation.send()
    admitted = [each.slot for each in plan.admissions]
    assert admitted == ([slot] if num_slots == 1 else [])
    assert slot not in plan.slots.tolist() or admitted
    assert (plan.windows, plan.num_draft_tokens.tolist()) == ([], [0])
    situation.finish()


@DEPTHS
def test_drafts_after_a_chunk_of_a_prompt_are_ignored(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, [1, 2] * 20, 20)
    num_left = 40
    while num_left:
        if not situation.scheduler.can_send:
            situation.answer()
        plan = situation.send()
        num_left -= int(plan.num_known_tokens[0])
        num_drafts = 0 if num_left else 4
        assert plan.num_draft_tokens.tolist() == [num_drafts]
        assert situation.counters(0)[:2] == (40 - num_left + num_drafts, num_drafts and 5)
    situation.finish()


@DEPTHS
def test_waiting_and_partly_prefilled_requests_survive_a_prescheduled_step(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=2)
    # The first is partly prefilled, the second waits for budget, the third for a slot.
    for handle, num_prompt_tokens in enumerate((40, 40, 1)):
        situation.add(handle, [handle] * num_prompt_tokens, 10)
    situation.finish()
    assert situation.worker.admitted == ["r0", "r1", "r2"]
    stats = situation.scheduler.stats
    assert stats.num_preschedule_hits + stats.num_preschedule_repairs > 10


@DEPTHS
def test_reading_statistics_invalidates_nothing(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    for handle in range(3):
        situation.add_predicted(handle, [handle], 30)
    waits = WindowWaits(0.0, pays_always=False)
    for _ in range(4):
        situation.fill()
        situation.scheduler.prepare()
        stats_message([situation.scheduler], waits, 1, 0)
        situation.scheduler.find_unaligned()
        situation.answer()
        stats_message([situation.scheduler], waits, 1, 0)
    stats = situation.scheduler.stats
    assert stats.num_prescheduled == 4
    assert (stats.num_preschedule_hits, stats.num_recomputed_rows) == (3, 0)


@pytest.mark.parametrize("is_optimistic", [False, True])
@pytest.mark.parametrize("stages", [2, 3])
def test_vllm_52071_pipeline_stages_under_synchronous_scheduling(
    stages: int, is_optimistic: bool
) -> None:
    situation = Situation(num_pipeline_stages=stages, enable_optimistic_scheduling=is_optimistic)
    for handle in range(6):
        situation.add_predicted(handle, [handle] * (1 + 4 * handle), 20)
    most = 0
    while situation.is_busy:
        situation.fill()
        # A request is in one stage at a time.
        in_flight = [slot for plan in situation.sent for slot in plan.slots.tolist()]
        assert len(in_flight) == len(set(in_flight))
        most = max(most, len(situation.sent))
        situation.scheduler.prepare()
        situation.answer()
    assert most == stages
    assert (situation.scheduler.stats.num_prescheduled > 0) == is_optimistic
    situation.finish()


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


@DEPTHS
@pytest.mark.parametrize("place", range(5))
def test_vllm_47616_a_stop_token_in_the_middle_of_the_window_with_usage(
    depth: int, place: int
) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.foresee(PROMPT, 12)[place]
    expected = situation.add_predicted(0, PROMPT, 10, stop_token_ids=[stop])
    assert len(expected) == place + 1
    situation.finish()
    finished = situation.finished(0)
    assert (finished.reason, finished.num_passes) == (FinishReason.STOP, 1)
    # The fifth token is the model's own. Drafts that the worker accepted after the stop token
    # were never delivered.
    kept = min(place + 1, 4)
    assert finished.accepted_prediction_tokens == kept
    assert finished.rejected_prediction_tokens == 4 - kept


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


@DEPTHS
def test_double_free(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    scheduler, total = situation.scheduler, situation.config.num_blocks
    for handle, (num_prompt_tokens, max_tokens) in enumerate(((2, 3), (9, 30), (9, 30))):
        situation.add(handle, [handle] * num_prompt_tokens, max_tokens)
    situation.fill()
    situation.abort(1)
    assert scheduler.abort("r1") is None
    situation.settle()
    assert scheduler.abort("r1") is None
    situation.fill()
    # What the worker ends and its client aborts at once is over once.
    situation.abort(2)
    if scheduler.has("r0"):
        situation.abort(0)
    situation.settle()
    for _ in range(2):
        assert scheduler.num_free_blocks == total
        assert [scheduler.abort(f"r{handle}") for handle in range(3)] == [None] * 3
    assert scheduler._state.table.num_free_slots == situation.config.max_num_seqs


# Blocks and widths.


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
    situation.add_predicted(0, PROMPT, 100)
    situation.step()
    for width in (0, 0, 4, 4, 0, 0, 2, 2):
        situation.table.draft_width[0] = width
        situation.fill()
        assert situation.sent[-1].num_draft_tokens.tolist() == [width]
        situation.settle()
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
    situation.add_predicted(0, PROMPT, 400)
    for handle in range(1, 60):
        situation.add(handle, [handle % 50] * 90, 1)
    num_beside = 0
    for _ in range(60):
        plan = situation.step()
        num_beside += plan.num_known_tokens.sum() > 20
        assert plan.num_draft_tokens[plan.slots.tolist().index(0)] == 4
    assert num_beside > 40


@DEPTHS
def test_a_proposer_that_failed_means_plain_decode(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add(0, PROMPT, 12, predicted_token_ids=[1, 2, 3])
    while not situation.got.ended:
        assert situation.scheduler.find_unaligned() == ["r0"]
        situation.fill()
        assert situation.sent[-1].num_draft_tokens.tolist() == [0]
        situation.answer()
    situation.finish()
    finished = situation.finished(0)
    assert (finished.num_passes, finished.num_drafted_tokens) == (12, 0)


# Results and statistics.


@DEPTHS
@pytest.mark.parametrize("token_id", [-1, 50, 2**31 - 1])
def test_ghsa_8wr5_jm2h_8r4f_an_emitted_id_at_or_above_the_vocabulary_size(
    depth: int, token_id: int
) -> None:
    situation = predicted(depth, 12)
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


@DEPTHS
def test_sglang_18848_statistics_are_not_polluted_by_stale_results(depth: int) -> None:
    situation = predicted(depth, 40)
    scheduler, result = situation.scheduler, run_plan(situation)
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
