"""Whether a figure stays where it is: a line through its samples."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression, mean
from typing import Any


@dataclass(frozen=True)
class Trend:
    """What a figure does over a run."""

    mean: float
    drift: float
    """What the fitted line gains from the first sample to the last."""
    is_flat: bool

    def report(self) -> dict[str, Any]:
        """Returns it with rounded numbers."""
        rounded = {"mean": float(f"{self.mean:.5g}"), "drift": float(f"{self.drift:.3g}")}
        return asdict(self) | rounded


def fit(samples: Sequence[tuple[float, float]], tolerance: float) -> Trend:
    """Fits a line by least squares.

    Args:
        samples: Times and values, at least two times.
        tolerance: Share of the mean that the figure may grow; less is flat too.
    """
    times, values = zip(*samples, strict=True)
    slope, _ = linear_regression(times, values)
    drift, average = slope * (times[-1] - times[0]), mean(values)
    return Trend(average, drift, drift <= tolerance * average)
