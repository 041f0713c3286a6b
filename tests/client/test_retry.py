"""When calls are made again."""

import pytest

from optimist_client import OptimistError, RetryPolicy


def error(status: str, retry_after: float | None = None) -> OptimistError:
    return OptimistError("x", status=status, code="x", retry_after=retry_after)


def test_waits_double_up_to_a_limit() -> None:
    policy = RetryPolicy(max_retries=9, first_wait_seconds=1.0, max_wait_seconds=4.0)
    for num_retries, longest in enumerate([1.0, 2.0, 4.0, 4.0]):
        wait = policy.wait_seconds(error("UNAVAILABLE"), num_retries, None)
        assert wait is not None
        assert longest / 2 <= wait <= longest


def test_the_server_is_given_the_time_it_asks_for() -> None:
    assert RetryPolicy().wait_seconds(error("RESOURCE_EXHAUSTED", 3.0), 0, None) == 3.0
    assert RetryPolicy().wait_seconds(error("RESOURCE_EXHAUSTED", 3.0), 0, 3.0) is None
    assert RetryPolicy().wait_seconds(error("RESOURCE_EXHAUSTED", 3.0), 0, 3.5) == 3.0


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "INTERNAL", "CANCELLED", "UNAUTHENTICATED"])
def test_other_errors_are_final(status: str) -> None:
    assert RetryPolicy().wait_seconds(error(status), 0, None) is None


def test_there_is_an_end() -> None:
    policy = RetryPolicy(max_retries=1)
    assert policy.wait_seconds(error("UNAVAILABLE"), 0, None) is not None
    assert policy.wait_seconds(error("UNAVAILABLE"), 1, None) is None
    assert RetryPolicy(max_retries=0).wait_seconds(error("UNAVAILABLE"), 0, None) is None
