from optimist_proposer.store.redis_client import CircuitBreaker


def test_pauses_double_up_to_the_longest_and_end_with_a_success() -> None:
    breaker = CircuitBreaker(0.25, 1.0)
    assert (breaker.is_open, breaker.pause_seconds) == (False, 0)
    pauses = []
    for _ in range(4):
        breaker.failed()
        assert breaker.is_open
        pauses.append(breaker.pause_seconds)
    assert pauses == [0.25, 0.5, 1.0, 1.0]
    breaker.succeeded()
    assert not breaker.is_open
    breaker.failed()
    assert breaker.pause_seconds == 0.25
