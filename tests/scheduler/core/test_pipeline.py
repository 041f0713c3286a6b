"""Pipeline stages have a plan each."""

import pytest

from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")


@pytest.mark.parametrize(
    ("stages", "num_requests", "sizes"),
    # An odd row makes one stage wider, and one row leaves the other stages empty.
    [(2, 6, [3, 3]), (3, 6, [2, 2, 2]), (2, 5, [2, 3]), (2, 1, [1]), (3, 1, [1])],
)
def test_stages_share_the_rows_evenly(stages: int, num_requests: int, sizes: list[int]) -> None:
    situation = Situation(num_pipeline_stages=stages, max_num_seqs=6, num_blocks=100)
    for handle in range(num_requests):
        situation.add(handle, [handle], 40)
    situation.step()
    for number in range(15):
        situation.fill()
        if number >= 10:
            assert sorted(len(plan.slots) for plan in situation.sent) == sizes
        situation.scheduler.prepare()
        situation.answer()
    assert situation.scheduler.stats.num_prescheduled > 0
    situation.finish()
