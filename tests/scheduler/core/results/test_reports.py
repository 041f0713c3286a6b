"""Log-probabilities and places of drafts on their way from the worker to those who asked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_from_bytes, from_bytes
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.plan import Plan
from optimist_scheduler.core.results.deliver import MISSING
from optimist_scheduler.core.results.read import ResultError
from optimist_scheduler.core.values import (
    NO_OUTPUTS,
    FinishReason,
    Logprobs,
    ReportedLogprobs,
    ReportedPositions,
)
from optimist_scheduler.gateways.delivery import split_by_owner
from optimist_scheduler.workers.translate import (
    new_request,
    outputs_message,
    plan_message,
    step_result,
)
from tests.scheduler.drive import make_window
from tests.scheduler.received import Received
from tests.scheduler.situation import Situation, run_plan

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
pytestmark = pytest.mark.usefixtures("always_ahead")
TELLING = SamplingParams(num_logprobs=2, num_prompt_logprobs=3)
PROMPT = [7, 3, 9, 1] * 4


class Listening(Situation):
    """A situation in which what is reported is kept, by handle."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.heard: dict[int, Received] = {}
        self.positions: dict[int, list[int]] = {}
        self.num_heard_rows = 0

    def answer(self) -> Any:
        outputs = super().answer()
        for reported in outputs.logprobs:
            new = self._news[reported.handle]
            received = self.heard.setdefault(reported.handle, Received(new, self.config.vocab_size))
            received.add(reported.logprobs)
            self.num_heard_rows += 1
        for where in outputs.positions:
            self.positions.setdefault(where.handle, []).extend(where.positions.tolist())
        return outputs


@DEPTHS
def test_a_prompt_in_chunks_is_reported_before_the_first_token(depth: int) -> None:
    situation = Listening(max_plans_in_flight=depth, max_num_batched_tokens=6)
    situation.add(1, PROMPT, 8, sampling=TELLING)
    situation.add(2, PROMPT, 8)
    situation.finish()
    assert set(situation.heard) == {1}
    situation.heard[1].check(situation.text(1))
    # Several chunks had no token with them.
    assert situation.num_heard_rows > 8


@DEPTHS
def test_what_was_accepted_after_a_stop_token_is_not_reported(depth: int) -> None:
    situation = Listening(max_plans_in_flight=depth)
    truth = Situation().add(0, PROMPT, 12)
    situation.add(
        1, PROMPT, 12, sampling=TELLING, stop_token_ids=[truth[2]], predicted_token_ids=truth
    )
    situation.propose(1)
    situation.finish()
    assert len(situation.text(1)) == truth.index(truth[2]) + 1
    situation.heard[1].check(situation.text(1))
    assert situation.finished(1).num_drafted_tokens >= 4


@DEPTHS
def test_a_preempted_prompt_is_reported_once(depth: int) -> None:
    situation = Listening(
        max_plans_in_flight=depth, num_blocks=10, enable_prefix_caching=True, max_num_seqs=3
    )
    for handle in (1, 2, 3):
        situation.add(handle, [handle, *PROMPT[:9]], 16, sampling=TELLING)
    situation.finish()
    assert situation.scheduler.stats.num_preemptions > 0
    for handle in (1, 2, 3):
        situation.heard[handle].check(situation.text(handle))


@DEPTHS
@pytest.mark.parametrize("num_steps", range(5))
def test_a_prompt_is_reported_once_though_the_worker_was_lost(depth: int, num_steps: int) -> None:
    situation = Listening(max_plans_in_flight=depth, max_num_batched_tokens=6)
    situation.add(1, PROMPT, 8, sampling=TELLING)
    for _ in range(num_steps):
        situation.fill()
        situation.answer()
    situation.lose_worker()
    situation.finish()
    situation.heard[1].check(situation.text(1))


def test_a_prompt_that_is_reported_does_not_begin_with_cached_blocks() -> None:
    situation = Listening(enable_prefix_caching=True, max_num_batched_tokens=64)
    situation.add(1, PROMPT, 4)
    situation.finish()
    situation.add(2, PROMPT, 4, sampling=TELLING)
    (admission,) = situation.send().admissions
    assert len(admission.cached_blocks) == 0
    situation.answer()
    # One that wants to know of its output alone may.
    situation.add(3, PROMPT, 4, sampling=SamplingParams(num_logprobs=0))
    (admission,) = situation.send().admissions
    assert len(admission.cached_blocks) == 3
    situation.answer()
    situation.finish()
    for handle in (2, 3):
        situation.heard[handle].check(situation.text(handle))


def test_what_was_reported_may_be_cached_when_it_is_computed_again() -> None:
    situation = Listening(enable_prefix_caching=True, max_num_batched_tokens=64)
    situation.add(1, PROMPT, 8, sampling=TELLING)
    situation.step()
    table = situation.table
    situation.scheduler._state.preempt(situation.slot(1))
    assert table.num_free_slots == situation.config.max_num_seqs
    plan = situation.send()
    assert len(plan.admissions[0].cached_blocks) == 4
    sampling = plan_message(plan).admissions[0].sampling
    assert not sampling.HasField("num_prompt_logprobs")
    assert sampling.num_logprobs == 2
    situation.answer()
    situation.finish()
    situation.heard[1].check(situation.text(1))


@pytest.mark.parametrize(
    "sampling", [SamplingParams(num_logprobs=0), SamplingParams(num_prompt_logprobs=0)]
)
@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a_worker_that_tells_nothing_fails_those_who_asked(
    sampling: SamplingParams, max_tokens: int
) -> None:
    situation = Listening()
    situation.worker.is_silent = True
    situation.add(1, PROMPT, max_tokens, sampling=sampling)
    situation.add(2, PROMPT, 5)
    situation.drain()
    assert (situation.finished(1).reason, situation.finished(1).message) == (
        FinishReason.ERROR,
        MISSING,
    )
    assert situation.finished(2).reason is FinishReason.LENGTH
    assert situation.text(2) == situation.expected[2]


def test_drafts_are_placed_where_they_stand_in_the_prediction() -> None:
    situation = Listening(num_speculative_tokens=3, max_num_batched_tokens=64)
    expected = situation.add_predicted(1, PROMPT, 12, wants_prediction_positions=True)
    situation.add_predicted(2, PROMPT, 12)
    situation.drain()
    assert set(situation.positions) == {1}
    assert situation.text(1) == expected
    # Every fourth token is the model's own.
    assert situation.positions[1] == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert situation.finished(1).num_drafted_tokens == 9


@DEPTHS
@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_positions_are_those_of_the_window_that_was_drafted_from(
    depth: int, is_tree: bool, is_replaced: bool
) -> None:
    situation = Listening(
        max_plans_in_flight=depth, num_speculative_tokens=6, max_num_batched_tokens=64
    )
    truth = Situation().add(0, PROMPT, 12)
    # In the prediction what comes stands further behind, with something else before it.
    wrong = (truth[0] + 1) % 50
    prediction = [wrong, 0, 0, *truth]
    situation.add(1, PROMPT, 12, predicted_token_ids=prediction, wants_prediction_positions=True)
    window = make_window(0, 3, truth[:6])
    if is_tree:
        # What comes is not what is likeliest.
        window = make_window(0, 0, [wrong, 0, 0], [(0, 3, truth[:3])])
    assert situation.scheduler.set_window("r1", window)
    situation.send()
    if is_replaced:
        # What comes later says nothing of what is in flight.
        assert situation.scheduler.set_window("r1", make_window(0, -1, truth[:2]))
    situation.answer()
    assert situation.positions[1] == ([3, 4, 5] if is_tree else [3, 4, 5, 6, 7, 8])
    situation.finish()


def reported(**changes: Any) -> Logprobs:
    whole = Logprobs(
        1,
        2,
        1,
        2,
        np.array([-1, -2, -3], np.float32),
        np.array([5, 6, 7, 8], np.int32),
        np.array([-1, -1.5, -2, -2.5], np.float32),
    )
    return replace(whole, **changes)


def first_plan() -> tuple[Situation, Plan]:
    situation = Situation(max_num_batched_tokens=64)
    situation.add(1, [4, 5, 6], 8, sampling=SamplingParams(num_logprobs=2, num_prompt_logprobs=1))
    return situation, situation.send()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_prompt_tokens": -1},
        {"num_prompt_tokens": 1},
        {"num_prompt_tokens": 4},
        {"first_prompt_position": 0},
        {"first_prompt_position": 2},
        {"num_prompt_candidates": -1},
        {"num_prompt_candidates": 2},
        {"num_candidates": 51},
        {"num_candidates": 1},
        {"logprobs": np.zeros(1, np.float32)},
        {"logprobs": np.zeros(4, np.float32)},
        {"logprobs": np.array([0, 0, np.nan], np.float32)},
        {"candidate_token_ids": np.array([5, 6, 7], np.int32)},
        {"candidate_token_ids": np.array([5, 6, 7, 50], np.int32)},
        {"candidate_token_ids": np.array([5, 6, 7, -1], np.int32)},
        {"candidate_logprobs": np.zeros(3, np.float32)},
        {"candidate_logprobs": np.array([0, 0, 0, np.nan], np.float32)},
    ],
)
def test_logprobs_that_cannot_be_of_the_row_are_refused(changes: dict[str, Any]) -> None:
    situation, plan = first_plan()
    result = run_plan(situation)
    slot = int(plan.slots[0])
    with pytest.raises(ResultError, match=r"logprobs|candidate_"):
        situation.scheduler.settle(replace(result, logprobs={slot: reported(**changes)}))
    with pytest.raises(ResultError, match="not in the plan"):
        situation.scheduler.settle(replace(result, logprobs={slot + 1: reported()}))
    (one,) = situation.scheduler.settle(replace(result, logprobs={slot: reported()})).logprobs
    assert one.logprobs.logprobs.tolist() == [-1, -2, -3]


def test_what_is_reported_to_several_streams_goes_to_each_its_own() -> None:
    places = np.array([3, -1, -5], np.int32)
    outputs = replace(
        NO_OUTPUTS,
        logprobs=[ReportedLogprobs(1, 10, reported()), ReportedLogprobs(2, 20, reported())],
        positions=[ReportedPositions(3, 30, places)],
    )
    parts = dict(split_by_owner(outputs))
    assert {owner: [one.handle for one in part.logprobs] for owner, part in parts.items()} == {
        1: [10],
        2: [20],
        3: [],
    }
    message = outputs_message(parts[3], {})
    assert [one.handle for one in message.prediction_positions] == [30]
    assert from_bytes(message.prediction_positions[0].positions).tolist() == [3, -1, -1]
    assert from_bytes(message.prediction_positions[0].prompt_positions).tolist() == [0, 0, 4]
    (logprobs,) = outputs_message(parts[2], {}).logprobs
    assert (logprobs.handle, logprobs.first_prompt_position) == (20, 1)
    assert (logprobs.num_prompt_tokens, logprobs.num_prompt_candidates) == (2, 1)
    assert logprobs.num_candidates == 2
    assert floats_from_bytes(logprobs.logprobs).tolist() == [-1, -2, -3]
    assert from_bytes(logprobs.candidate_token_ids).tolist() == [5, 6, 7, 8]
    assert floats_from_bytes(logprobs.candidate_logprobs).tolist() == [-1, -1.5, -2, -2.5]


def test_a_request_says_whether_it_wants_positions() -> None:
    assert new_request(
        scheduler_pb2.Add(wants_prediction_positions=True), 1
    ).wants_prediction_positions
    assert not new_request(scheduler_pb2.Add(), 1).wants_prediction_positions


def test_a_slot_that_is_reported_twice_is_refused() -> None:
    one = worker_pb2.RowLogprobs(slot=3)
    with pytest.raises(ValueError, match="twice"):
        step_result(worker_pb2.ExecuteResponse(logprobs=[one, one]))
