"""Waits for windows that pay, and those that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.requests.following import WaitBudget, WaitValue

PASS_SECONDS = 0.02


@given(st.integers(0, 64), st.floats(0, 1), st.floats(0, 1))
def test_a_wait_that_holds_up_nobody_pays_if_anybody_lacks_a_window(
    num_lacking: int, longest: float, pass_seconds: float
) -> None:
    assert WaitValue(longest).pays(num_lacking, 0, pass_seconds) == (num_lacking > 0)


@given(st.integers(1, 64), st.integers(0, 64))
def test_a_wait_pays_if_more_lack_a_window_than_it_takes_of_the_pass(
    num_running: int, num_lacking: int
) -> None:
    value = WaitValue(0.01)
    assert value.pays(num_lacking, num_running, PASS_SECONDS) == (2 * num_lacking >= num_running)


def test_long_waits_make_the_next_ones_seem_dear() -> None:
    value = WaitValue(0.001)
    assert value.pays(8, 64, PASS_SECONDS)
    for _ in range(64):
        value.observe(0.01)
    assert not value.pays(8, 64, PASS_SECONDS)


def test_what_was_dear_once_is_tried_again() -> None:
    value = WaitValue(0.01)
    num_skipped = 0
    while not value.pays(1, 64, PASS_SECONDS):
        num_skipped += 1
    assert 100 < num_skipped < 1000
    value.observe(0.01)
    assert not value.pays(1, 64, PASS_SECONDS)


def test_waits_that_overrun_are_ended_sooner() -> None:
    budget = WaitBudget(0.010)
    assert budget.timeout == 0.010
    budget.observe(0.012, 0.010)
    assert budget.timeout == pytest.approx(0.008)
    for _ in range(1000):
        budget.observe(budget.timeout, budget.timeout)
    assert budget.timeout == pytest.approx(0.010, rel=1e-3)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_a_wait_is_half_of_the_longest_at_least(overruns: list[float]) -> None:
    budget = WaitBudget(0.010)
    for overrun in overruns:
        timeout = budget.timeout
        budget.observe(timeout + overrun, timeout)
        assert 0.005 <= budget.timeout <= 0.010
