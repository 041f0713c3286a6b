from optimist_proposer.core.breaker import CircuitBreaker


def test_pause_doubles_up_to_its_limit_and_ends_with_success() -> None:
    breaker = CircuitBreaker(first_pause_seconds=1.0, longest_pause_seconds=3.0)
    assert breaker.allows(0.0)
    breaker.failed(10.0)
    assert not breaker.allows(10.9)
    assert breaker.allows(11.0)
    breaker.failed(11.0)
    assert not breaker.allows(12.9)
    assert breaker.allows(13.0)
    breaker.failed(13.0)
    breaker.failed(13.0)
    assert breaker.allows(16.0)
    breaker.succeeded()
    breaker.failed(20.0)
    assert breaker.allows(21.0)
