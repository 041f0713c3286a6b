import random

from tests.chaos.trend import fit


def test_noise_is_flat() -> None:
    rng = random.Random(1)
    assert fit([(time, 100 + rng.gauss(0, 1)) for time in range(100)], 0.03).is_flat


def test_growth_beyond_the_tolerance_is_not() -> None:
    trend = fit([(time, 100 + 0.1 * time) for time in range(101)], 0.03)
    assert not trend.is_flat
    assert round(trend.drift, 6) == 10
    assert fit([(time, 100 + 0.1 * time) for time in range(101)], 0.2).is_flat


def test_what_falls_is_flat() -> None:
    assert fit([(time, 100 - time) for time in range(10)], 0.03).is_flat
