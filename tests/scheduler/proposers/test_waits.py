"""Waits pay and end in time; a proposer that answers nothing is taken for silent."""

from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.proposers.links import SILENT_SECONDS, Silence
from optimist_scheduler.proposers.waits import Wait, WindowWaits

PASS_SECONDS = 0.02


def waits(longest: float) -> WindowWaits:
    return WindowWaits(longest, pays_always=False)


def note(one: WindowWaits, seconds: float, *, is_over: bool = False) -> None:
    wait = Wait(one.timeout, costs_nothing=False)
    one.note(wait, seconds, is_over=is_over, is_in_vain=False, is_idle=False)


@given(st.integers(1, 64), st.integers(0, 64))
def test_a_wait_pays_if_more_lack_a_window_than_it_takes_of_the_pass(
    num_running: int, num_lacking: int
) -> None:
    one = waits(0.01)
    assert one.pays(num_lacking, num_running, PASS_SECONDS, 0.0) == (2 * num_lacking >= num_running)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_a_wait_is_half_of_the_longest_at_least(overruns: list[float]) -> None:
    one = waits(0.010)
    for overrun in overruns:
        note(one, one.timeout + overrun, is_over=True)
        assert 0.005 <= one.timeout <= 0.010


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=60))
def test_silence_lasts_until_all_is_answered(events: list[tuple[float, bool]]) -> None:
    silence, now, due, num_unanswered, expected = Silence(), 0.0, None, 0, False
    for pause, is_answer in events:
        now += pause
        expected = expected or (due is not None and now - due > SILENT_SECONDS)
        assert silence.find(now) == expected
        if not is_answer:
            num_unanswered += 1
            due = now if due is None else due
            silence.note_sent(now)
        elif num_unanswered:
            num_unanswered -= 1
            due = now if num_unanswered else None
            expected = expected and num_unanswered > 0
            silence.note_answer(now, num_unanswered)
