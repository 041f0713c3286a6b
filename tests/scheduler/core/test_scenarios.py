"""Synchronous or ahead of results, with drafts or without: the same texts, and blocks enough."""

import numpy as np
import pytest

from tests.scheduler.drive import NOW
from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


@DEPTHS
@pytest.mark.parametrize("num_drafts", [0, 4])
@pytest.mark.parametrize("num_blocks", [11, 40])
def test_texts_are_the_same_with_and_without(depth: int, num_drafts: int, num_blocks: int) -> None:
    texts: list[dict[int, list[int]]] = []
    for is_optimistic in (False, True):
        situation = Situation(
            max_plans_in_flight=depth,
            enable_optimistic_scheduling=is_optimistic,
            num_speculative_tokens=num_drafts,
            num_blocks=num_blocks,
        )
        for handle in range(7):
            add = situation.add_predicted if handle % 2 else situation.add
            add(handle, [handle] * (1 + 2 * handle), 20 + handle)
        situation.finish()
        assert (situation.scheduler.stats.num_prescheduled > 0) == is_optimistic
        assert (situation.scheduler.stats.num_preemptions > 0) == (num_blocks == 11)
        texts.append(situation.got.tokens)
    assert texts[0] == texts[1]


@DEPTHS
@pytest.mark.parametrize("num_prompt_tokens", [13, 14, 15, 16])
@pytest.mark.parametrize("num_drafts", [0, 1, 4])
def test_blocks_are_never_overcommitted_at_the_block_edge(
    depth: int, num_prompt_tokens: int, num_drafts: int
) -> None:
    # Each of the three may have three blocks in the end, and there are eight.
    situation = Situation(
        max_plans_in_flight=depth,
        block_size=16,
        num_blocks=8,
        max_num_batched_tokens=64,
        num_speculative_tokens=num_drafts,
    )
    for handle in range(3):
        situation.add_predicted(handle, [handle] * num_prompt_tokens, 30)
    blocks = situation.scheduler._state.blocks
    while situation.scheduler.num_running + situation.scheduler.num_waiting + len(situation.sent):
        while situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            situation.sent.append(plan)
            assert blocks.num_blocks.sum() <= 8
            # All that may be in flight has its place.
            ends = np.minimum(situation.table.num_computed_tokens, situation.table.max_length)
            assert (blocks.num_blocks[plan.slots] * 16 >= ends[plan.slots]).all()
        situation.scheduler.prepare()
        situation.answer()
    situation.finish()
