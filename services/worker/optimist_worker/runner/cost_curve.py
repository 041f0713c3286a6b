"""What a forward pass of how many tokens costs: which sizes to time, and the curve of it."""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Times of passes; both lists are empty if none was timed."""

    num_tokens: list[int]
    """Ascending, `[num_points]`."""
    microseconds: list[int]
    """Never decreasing, `[num_points]`."""


def pass_sizes(most_tokens: int) -> list[int]:
    """Returns 1, 2, 4, 8 and so on, and `most_tokens` as the last."""
    sizes = [2**power for power in range(most_tokens.bit_length()) if 2**power < most_tokens]
    return [*sizes, most_tokens] if most_tokens > 0 else []


def fit_curve(times: dict[int, float]) -> CostCurve:
    """Makes a curve that never decreases.

    A pass of fewer tokens costs no more than one of more; where the times say otherwise, the
    smaller one was disturbed, because what disturbs a measurement makes it longer.

    Args:
        times: Best time by number of tokens, in seconds.
    """
    sizes = sorted(times)
    fitted = list(accumulate((times[size] for size in reversed(sizes)), min))[::-1]
    return CostCurve(sizes, [max(1, round(seconds * 1e6)) for seconds in fitted])
