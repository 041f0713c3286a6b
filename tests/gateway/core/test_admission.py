"""What is remembered of clients is bounded, and rates are kept to."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core import admission
from optimist_gateway.core.admission import Admission, TokenBucket


def test_what_is_remembered_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_ACCOUNTS", 4)
    seconds = count()
    admits = Admission(max_num_requests=8, requests_per_minute=60, clock=lambda: next(seconds))
    admits.admit("busy", 1)
    for number in range(50):
        admits.admit(f"client {number}", 1)
        admits.release(f"client {number}", 1)
    assert len(admits._accounts) <= 5
    admits.release("busy", 1)
    assert admits.num_requests == 0


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
