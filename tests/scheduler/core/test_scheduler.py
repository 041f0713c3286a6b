"""What the scheduler does in one situation after another."""

import pytest

from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")


def test_drafts_never_preempt() -> None:
    situation = Situation(num_blocks=4, max_num_seqs=2)
    situation.add_predicted(0, [1], 8)
    situation.add(1, [2], 4)
    situation.finish()
    assert situation.scheduler.stats.num_preemptions == 0
    assert situation.finished(0).accepted_prediction_tokens > 0


def test_a_window_is_sent_once_and_again_after_readmission() -> None:
    situation = Situation()
    situation.add_predicted(0, [1, 2], 20)
    assert [len(situation.step().windows) for _ in range(2)] == [1, 0]
    situation.lose_worker()
    plan = situation.send()
    assert [slot for slot, _ in plan.windows] == plan.slots.tolist()
    situation.finish()


# Requests that leave one scheduler and go on at another, and what losses end.
