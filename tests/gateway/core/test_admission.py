"""Limits and rates of clients, with a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core import admission
from optimist_gateway.core.admission import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Admission,
    AdmissionLimits,
    ServiceRate,
    TokenBucket,
)
from optimist_gateway.core.error import ApiError


class Clock:
    """Says what the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def control(clock: Clock, **limits: float) -> Admission:
    values = {"max_num_requests": 8, **limits}
    return Admission(AdmissionLimits(**values), clock)  # type: ignore[arg-type]


def admitted(admits: Admission, client: str, count: int = 1) -> bool:
    try:
        admits.admit(client, count)
    except ApiError:
        return False
    return True


def refused(admits: Admission, client: str, count: int = 1) -> tuple[str, float]:
    """Returns the error's text and the seconds to wait."""
    with pytest.raises(ApiError) as caught:
        admits.admit(client, count)
    seconds = caught.value.retry_seconds
    assert seconds is not None
    assert SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS
    return caught.value.message, seconds


def test_a_request_for_all_places_waits_for_an_empty_server(clock: Clock) -> None:
    admits = control(clock)
    assert admitted(admits, "b")
    assert refused(admits, "a", 8)[0].startswith("1 requests are in progress")
    admits.release("b", 1)
    assert admitted(admits, "a", 8)


def test_concurrency_of_a_client_is_bounded(clock: Clock) -> None:
    admits = control(clock, max_num_requests_per_client=2)
    assert admitted(admits, "a", 2)
    assert "as may be (2)" in refused(admits, "a")[0]
    assert admitted(admits, "b", 2)
    admits.release("a", 1)
    assert admitted(admits, "a")


def test_requests_in_a_minute_are_bounded_and_come_again(clock: Clock) -> None:
    admits = control(clock, requests_per_minute=3)
    for _ in range(3):
        assert admitted(admits, "a")
        admits.release("a", 1)
    message, seconds = refused(admits, "a")
    assert "3 requests in a minute" in message
    assert seconds == pytest.approx(20)
    assert admitted(admits, "b")
    clock.now = 20.0
    assert admitted(admits, "a")


def test_what_is_remembered_of_clients_is_bounded(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_ACCOUNTS", 4)
    admits = control(clock, requests_per_minute=60)
    assert admitted(admits, "busy")
    for number in range(50):
        clock.now = number
        assert admitted(admits, f"client {number}")
        admits.release(f"client {number}", 1)
    assert len(admits._accounts) <= 5
    admits.release("busy", 1)
    assert admits.num_requests == 0


def test_retry_follows_the_measured_rate(clock: Clock) -> None:
    admits = control(clock)
    assert admits.retry_seconds() == SHORTEST_SECONDS
    assert admitted(admits, "", 8)
    # A choice ends every ten seconds.
    for clock.now in range(10, 110, 10):
        admits.release("", 1)
        assert admitted(admits, "")
    assert refused(admits, "", 2)[1] == pytest.approx(20, rel=0.3)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=60), st.integers(1, 1000))
def test_rates_are_bounded_and_never_negative(pauses: list[float], count: int) -> None:
    rate, now = ServiceRate(0.0), 0.0
    for pause in pauses:
        now += pause
        rate.observe(1, now)
        assert 0 < rate.per_second(now) <= 1.02 * len(pauses)
        assert SHORTEST_SECONDS <= rate.seconds_until(count, now) <= LONGEST_SECONDS


@given(st.floats(0.1, 1000), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 50)), max_size=40))
def test_a_bucket_keeps_to_its_rate(per_minute: float, takes: list[tuple[float, float]]) -> None:
    bucket, now, taken = TokenBucket(per_minute, 0.0), 0.0, 0.0
    for pause, units in takes:
        now += pause
        wait = bucket.seconds_until(units, now)
        assert wait >= 0
        if wait == 0:
            bucket.take(units, now)
            taken += units
    assert taken <= per_minute * (1 + now / 60) * (1 + 1e-9) + 1e-6
