"""When a proposer is taken for silent."""

from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.requests.silence import SILENT_SECONDS, Silence


def test_who_has_nothing_to_answer_is_not_silent() -> None:
    silence = Silence()
    assert not silence.find(1000.0)
    silence.note_sent(1000.0)
    silence.note_answer(1001.0, 0)
    assert not silence.find(2000.0)


def test_each_answer_gives_time_for_the_next() -> None:
    silence = Silence()
    for number in range(10):
        silence.note_sent(number * 0.1)
    now = 0.0
    for left in range(9, -1, -1):
        now += 0.9 * SILENT_SECONDS
        assert not silence.find(now)
        silence.note_answer(now, left)
    assert not silence.find(now + 1000)


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
