"""How much of a lookup is likely, by what became of those before."""

import numpy as np

from optimist_common.lookup import MOST_DRAFTS, Doubts

SLOTS = np.arange(2)
MATCHED = np.full(2, 3)


def count_likely(doubts: Doubts) -> list[int]:
    counts: list[int] = doubts.count_likely(SLOTS, MATCHED, 0.3).tolist()
    return counts


def test_a_slot_that_was_wrong_is_doubted_and_no_other_one() -> None:
    doubts = Doubts(2)
    first, second = count_likely(doubts)
    assert 1 < first == second < MOST_DRAFTS
    for _ in range(8):
        doubts.observe(SLOTS[:1], np.array([first]), np.array([0]))
    assert count_likely(doubts) == [0, second]
    doubts.admit(0)
    assert count_likely(doubts) == [first, second]


def test_what_comes_true_is_believed_more_and_without_a_least_chance_all_is() -> None:
    doubts = Doubts(2)
    first, _ = count_likely(doubts)
    for _ in range(8):
        doubts.observe(SLOTS[:1], np.array([first]), np.array([first]))
    assert count_likely(doubts)[0] > first
    assert doubts.count_likely(SLOTS, MATCHED, 0.0).tolist() == [MOST_DRAFTS] * 2
