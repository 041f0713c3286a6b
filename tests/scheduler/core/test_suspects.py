"""Requests that may end their workers run alone; test_fleet.py has whole workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.requests.request import (
    LOSSES_AT_LAST_ALONE,
    LOSSES_TOGETHER,
    MOST_LOSSES,
    Suspicion,
)
from tests.scheduler.situation import Situation


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), min_size=1))
def test_losses_count_that_one_length_explains(losses: list[tuple[int, int, bool]]) -> None:
    suspicion, length, spans = Suspicion(), 3, list[range]()
    for num_gained, num_in_flight, is_alone in losses:
        length += num_gained
        spans.append(range(length + 1, length + max(num_in_flight, 1) + 1))
        suspicion.note_loss(length, length + num_in_flight, is_alone=is_alone)
        most = max(sum(place in span for span in spans) for place in spans[-1])
        assert suspicion.num_losses == most
        assert suspicion.must_run_alone == (most >= LOSSES_TOGETHER)
        assert suspicion.is_proven == (most >= (LOSSES_AT_LAST_ALONE if is_alone else MOST_LOSSES))
    suspicion.note_length(max(span[-1] for span in spans))
    assert suspicion.num_losses == 0


@pytest.mark.parametrize("depth", [1, 3])
def test_suspects_run_one_after_the_other_while_all_others_wait(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    for handle in range(3):
        situation.add(handle, [handle, 5], 20)
    for _ in range(LOSSES_TOGETHER):
        situation.fill()
        situation.lose_worker()
    situation.add(3, [9], 20)
    alone: list[set[int]] = []
    while True:
        situation.fill()
        if not situation.scheduler._state.waiting.suspects:
            break
        alone.append({slot for plan in situation.sent for slot in plan.slots.tolist()})
        assert situation.text(3) == []
        situation.answer()
    assert len(alone) >= 3
    assert all(len(slots) == 1 for slots in alone)
    assert min(len(situation.text(handle)) for handle in range(3)) >= 1
    situation.finish()
