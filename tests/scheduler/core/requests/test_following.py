"""Requests that proposers follow: when they wake, what proposers are sent, and waits that pay.

When they rest, and that proposers get all, is in test_random_commands.py.
"""

from optimist_scheduler.core.base.values import StepOutputs
from tests.scheduler.situation import Situation, make_window, set_window


def long_situation(num_speculative_tokens: int = 4) -> Situation:
    """Returns one with room for long outputs that repeat nothing by chance."""
    return Situation(
        max_model_len=1300,
        num_blocks=400,
        vocab_size=30_000,
        num_speculative_tokens=num_speculative_tokens,
    )


def step(situation: Situation) -> StepOutputs:
    situation.send()
    return situation.answer()


def rest(situation: Situation, handle: int = 0) -> list[int]:
    """Steps until the request rests; returns what proposers were sent of its output."""
    sent: list[int] = []
    while situation.scheduler.count_followed()[1] == 0:
        for request_id, tokens in step(situation).observed:
            assert request_id == f"r{handle}"
            sent += tokens
    return sent


def propose(
    situation: Situation, handle: int, number: int, values: list[float] | None = None
) -> bool:
    """Sets what the request will say as its window, read from its prompt."""
    base = len(situation.text(handle))
    tokens = situation.expected[handle][base : base + number]
    window = make_window(base, -1, tokens, values if values else ())
    return set_window(situation.scheduler, f"r{handle}", window)


def test_who_has_promised_too_much_is_doubted() -> None:
    situation = long_situation()
    situation.add(0, [1, 2], 200, is_followed=True)
    step(situation)
    first = (situation.expected[0][1] + 1) % situation.config.vocab_size
    assert set_window(situation.scheduler, "r0", make_window(1, -1, [first]))
    while situation.scheduler.count_followed()[1] == 0:
        base = len(situation.text(0))
        wrong = [(situation.expected[0][base] + 1) % situation.config.vocab_size]
        assert set_window(situation.scheduler, "r0", make_window(base, -1, wrong, [0.8]))
        step(situation)
    assert not propose(situation, 0, 3, [0.5, 0.375, 0.125])
    assert propose(situation, 0, 8, [0.98**depth for depth in range(1, 9)])


def test_a_message_is_not_worth_few_awake_rows_of_many() -> None:
    situation = Situation(
        max_num_seqs=32, max_num_batched_tokens=256, max_num_waiting=32, num_blocks=800
    )
    for handle in range(32):
        situation.add(handle, [handle, 1], 50, is_followed=True)
    step(situation)
    sent = {7: set[bool](), 8: set[bool]()}
    for num_awake, woken in ((7, range(7)), (8, range(7, 8))):
        for handle in woken:
            assert propose(situation, handle, 2, [0.75, 0.5])
        for _ in range(5):
            names = [request_id for request_id, _ in step(situation).observed]
            if situation.scheduler.stats.num_results % 4:
                sent[num_awake].add("r0" in names)
    assert situation.scheduler.count_followed() == (8, 24)
    # With the groups of those that rest, at every fourth result, until one of four is awake.
    assert sent == {7: {False}, 8: {True}}
    situation.finish()
