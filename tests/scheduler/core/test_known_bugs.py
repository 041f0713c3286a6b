"""Bugs of other engines that concern what is in flight, each provoked here.

Those of stops, memory, widths and accounts are in test_known_bugs_of_ends.py. Not here: grammar,
log-probabilities and sampling (the worker's tests), draft models (the drafters'), CR LF, content
parts, n > 1 and stop strings (the gateway's): this scheduler knows token ids only.
"""

from dataclasses import replace

import pytest

from optimist_scheduler.core.requests.table import SlotStatus
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.values import FinishReason
from optimist_scheduler.gateways.commands import stats_message
from optimist_scheduler.proposers.links import WindowWaits
from tests.scheduler.drive import NOW, make_window, rows
from tests.scheduler.situation import Situation, run_plan

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
AHEAD = pytest.mark.parametrize("depth", [2, 3])


@DEPTHS
def test_vllm_46669_placeholders_after_a_scheduling_gap(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, [1, 2], 30)
    situation.propose(0, wrong_at=1)
    situation.fill()
    assert situation.counters(0)[1] == depth * 5
    situation.scheduler.pause(PauseMode.KEEP)
    while situation.sent:
        assert situation.scheduler.schedule(NOW) is None
        situation.answer()
    num_tokens = 2 + len(situation.text(0))
    assert num_tokens == 2 + 2 + depth - 1
    assert situation.counters(0) == (num_tokens - 1, 0, 0)
    situation.scheduler.resume()
    situation.propose(0)
    plan = situation.send()
    assert (plan.num_known_tokens.tolist(), plan.num_draft_tokens.tolist()) == ([1], [4])
    situation.finish()


@DEPTHS
def test_vllm_40768_placeholders_when_a_request_is_added_again(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=1)
    situation.add_predicted(0, [1, 2], 30)
    situation.fill()
    situation.abort(0)
    while situation.sent:
        situation.answer()
    situation.add(0, [1, 2, 3], 30)
    plan = situation.send()
    # The same slot and the same id, and nothing of what was in flight before.
    assert (plan.released_slots, plan.slots.tolist()) == ([0], [0])
    assert situation.counters(0) == (3, 1, 3)
    situation.finish()


@DEPTHS
def test_vllm_37159_placeholders_when_the_worker_comes_back(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, [1, 2], 30)
    situation.fill()
    assert situation.counters(0)[1] == 5 * depth
    situation.lose_worker()
    plan = situation.send()
    assert plan.num_known_tokens.tolist() == [2]
    assert situation.counters(situation.slot(0)) == (6, 5, 6)
    situation.finish()


@DEPTHS
def test_k_changed_between_schedule_and_output(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    expected = situation.add_predicted(0, [1, 2], 30)
    situation.fill()
    # What is taken back is what was planned, whatever the window and the width are by now.
    situation.scheduler.set_window("r0", make_window(0, 0, expected[:1]))
    situation.table.draft_width[0] = 2
    while situation.sent:
        situation.answer()
    assert len(situation.text(0)) == 5 * depth
    assert situation.counters(0) == (2 + 5 * depth - 1, 0, 0)
    situation.finish()


@AHEAD
def test_vllm_42722_an_empty_row_with_drafts_of_an_ended_request(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.add_predicted(0, [1, 2], 30)[2]
    situation.abort(0)
    expected = situation.add_predicted(1, [1, 2], 30, stop_token_ids=[stop])
    situation.fill()
    slot = situation.slot(1)
    outputs = situation.answer()
    assert rows(outputs) == {1: expected}
    assert situation.table.status[slot] == SlotStatus.ENDED
    for _ in range(depth - 1):
        assert situation.sent[0].num_draft_tokens.tolist() == [4]
        outputs = situation.answer()
        assert rows(outputs) == {}
    assert situation.counters(slot)[1:] == (0, 0)
    situation.finish()


@DEPTHS
def test_vllm_42722_an_empty_row_with_drafts_of_a_request_that_fails(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    situation.add_predicted(0, [1, 2], 30)
    situation.add_predicted(1, [3], 30)
    situation.fill()
    slot = situation.slot(0)
    situation.worker.failing.add("r0")
    del situation.expected[0]
    outputs = situation.answer()
    assert [(each.handle, each.finished.reason) for each in outputs.ended] == [
        (0, FinishReason.ERROR)
    ]
    while situation.sent:
        situation.answer()
    assert situation.counters(slot)[1:] == (0, 0)
    situation.finish()
    assert situation.text(0) == []


@AHEAD
def test_vllm_30142_a_result_comes_after_the_preemption(depth: int) -> None:
    situation = Situation(
        max_plans_in_flight=depth, policy="priority", max_num_seqs=1, num_blocks=16
    )
    expected = situation.add_predicted(0, [1, 2], 30, priority=5)
    situation.fill()
    situation.answer()
    situation.add(1, [3], 3, priority=0)
    # Preempting sends no rows; the plans in flight go on and what they bring is delivered.
    assert situation.scheduler.schedule(NOW) is None
    assert situation.scheduler.stats.num_preemptions == 1
    slot = situation.slot(0)
    assert situation.table.status[slot] == SlotStatus.LEAVING
    for number in range(2, depth + 1):
        assert rows(situation.answer()) == {0: expected[5 * number - 5 : 5 * number]}
    assert situation.counters(slot)[1:] == (0, 0)
    plan = situation.send()
    assert [each.request.request_id for each in plan.admissions] == ["r1"]
    situation.finish()
    again = [name for name in situation.worker.admitted if name == "r0"]
    assert len(again) == 2


@DEPTHS
@pytest.mark.parametrize("is_predicted", [False, True])
def test_vllm_46066_repeated_preemption(depth: int, is_predicted: bool) -> None:
    situation = Situation(max_plans_in_flight=depth, num_blocks=10, max_num_seqs=4)
    for handle in range(6):
        add = situation.add_predicted if is_predicted else situation.add
        add(handle, [handle, 1, 2], 30)
    situation.finish()
    assert situation.scheduler.stats.num_preemptions >= 3
    readmitted = [situation.worker.admitted.count(f"r{handle}") - 1 for handle in range(6)]
    assert sum(readmitted) == situation.scheduler.stats.num_preemptions
    assert max(readmitted) >= 2


def test_vllm_28558_drafts_of_a_request_preempted_in_the_same_schedule_call() -> None:
    situation = Situation(policy="priority", max_num_seqs=2, num_blocks=12)
    situation.add(0, [9], 30, priority=0)
    situation.add_predicted(1, [1, 2], 30, priority=5)
    situation.step()
    slot = situation.slot(1)
    situation.propose(1)
    situation.add(2, [3] * 20, 3, priority=1)
    decision = situation.scheduler.compute_schedule()
    assert decision.preempted.tolist() == [slot]
    plan = situation.send()
    assert slot not in plan.slots.tolist()
    assert plan.num_draft_tokens.tolist() == [0]
    assert plan.windows == []
    situation.finish()


def test_vllm_28558_the_slot_of_a_preempted_request_is_taken_in_the_same_call() -> None:
    situation = Situation(policy="priority", max_num_seqs=1)
    situation.add_predicted(1, [1, 2], 30, priority=5)
    situation.step()
    situation.propose(1)
    situation.add(2, [3], 3, priority=1)
    plan = situation.send()
    assert [each.request.request_id for each in plan.admissions] == ["r2"]
    assert (plan.released_slots, plan.slots.tolist()) == ([0], [0])
    assert (plan.windows, plan.num_draft_tokens.tolist()) == ([], [0])
    assert situation.counters(0) == (1, 1, 1)
    situation.finish()


@DEPTHS
def test_drafts_behind_a_chunk_of_a_prompt_are_ignored(depth: int) -> None:
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
    situation.add(0, [5] * 40, 10)
    situation.add(1, [6] * 40, 10)
    situation.add(2, [7], 10)
    situation.fill()
    # The first is partly prefilled, the second waits for budget, the third for a slot.
    while situation.scheduler.num_waiting:
        situation.scheduler.prepare()
        assert situation.scheduler.stats.num_prescheduled > 0
        situation.answer()
        situation.fill()
        assert (
            situation.scheduler.num_running
            + situation.scheduler.num_waiting
            + len(situation.got.ended)
            == 3
        )
    situation.finish()
    assert situation.worker.admitted == ["r0", "r1", "r2"]
    stats = situation.scheduler.stats
    assert stats.num_preschedule_hits + stats.num_preschedule_repairs > 10


@DEPTHS
def test_reading_statistics_invalidates_nothing(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    for handle in range(3):
        situation.add_predicted(handle, [handle], 30)
    for _ in range(4):
        situation.fill()
        situation.scheduler.prepare()
        stats_message([situation.scheduler], WindowWaits(0.0, pays_always=False), 1, 0)
        situation.scheduler.find_unaligned()
        situation.answer()
        stats_message([situation.scheduler], WindowWaits(0.0, pays_always=False), 1, 0)
    stats = situation.scheduler.stats
    assert stats.num_prescheduled == 4
    assert (stats.num_preschedule_hits, stats.num_recomputed_rows) == (3, 0)
    situation.finish()


@pytest.mark.parametrize("stages", [2, 3])
def test_vllm_52071_pipeline_stages_under_synchronous_scheduling(stages: int) -> None:
    situation = Situation(num_pipeline_stages=stages, enable_optimistic_scheduling=False)
    for handle in range(4):
        situation.add_predicted(handle, [handle], 30)
    situation.step()
    while situation.scheduler.num_running:
        while situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            situation.sent.append(plan)
        in_flight = [slot for plan in situation.sent for slot in plan.slots.tolist()]
        assert len(in_flight) == len(set(in_flight))
        situation.answer()
    situation.finish()
    assert situation.scheduler.stats.num_prescheduled == 0


@AHEAD
def test_mini_sglang_a_token_after_the_end_from_the_overshooting_step(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    stop = situation.add(0, [1, 2], 30)[0]
    situation.abort(0)
    situation.add(1, [1, 2], 30, stop_token_ids=[stop])
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
