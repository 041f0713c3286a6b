"""What was measured with and without speculation, beside what the scheduler's model says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import numpy as np

from optimist_aligner.cost import CostCurve
from optimist_bench.crossover.load import StepCosts
from optimist_bench.harness.command import format_table
from optimist_scheduler.core.width.acceptance import should_use_speculation

LEAST_RATIO = 0.98
"""What adaptive speculation must keep of the throughput without."""
LEAST_GAIN = 1.02
"""What counts as faster."""


@dataclass(frozen=True)
class Expectation:
    """What the model of the costs says of a batch size and acceptance."""

    num_drafts: int
    """The best number of drafts, of those above 0."""
    speedup: float
    """With it, against none."""


@dataclass(frozen=True)
class Point:
    """One batch size and acceptance rate."""

    batch_size: int
    acceptance: float
    with_speculation: tuple[float, ...]
    """Tokens per second, per pair."""
    without: tuple[float, ...]
    """Tokens per second, per pair."""
    without_again: tuple[float, ...]
    """Ratios of two measurements without speculation, one after the other."""
    expected: Expectation

    @property
    def ratios(self) -> list[float]:
        """Throughput with speculation over without, pair by pair."""
        return [a / b for a, b in zip(self.with_speculation, self.without, strict=True)]


def expect(costs: StepCosts, acceptance: float, batch_size: int, max_drafts: int) -> Expectation:
    """Returns what `should_use_speculation` says of the costs that were measured at start.

    All rows are taken to draft the same number, and the drafter to take as long as for one row.
    """
    curve = CostCurve(costs.num_tokens, costs.pass_us)
    num_drafts = np.arange(1, max_drafts + 1)
    drafter_us = np.zeros(max_drafts)
    known = np.array(costs.drafter_us[:max_drafts], np.float64)
    drafter_us[: len(known)] = known
    if 0 < len(known) < max_drafts:
        drafter_us[len(known) :] = known[-1]
    crossover = should_use_speculation(
        acceptance,
        num_drafts,
        1000 * drafter_us / num_drafts,
        curve.cost(batch_size * (1 + num_drafts)),
        curve.cost(batch_size),
    )
    best = int(crossover.speedup.argmax())
    return Expectation(int(num_drafts[best]), float(crossover.speedup[best]))


def summarise(points: Sequence[Point], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the report on all points."""
    noise = [ratio for point in points for ratio in point.without_again]
    never_below = min(median(point.ratios) for point in points)
    sizes = sorted({point.batch_size for point in points})
    return {
        "synthetic": True,
        **facts,
        "never_below": round(never_below, 4),
        "holds": never_below >= LEAST_RATIO,
        "noise": _spread(noise),
        "median_ratio": round(median(ratio for each in points for ratio in each.ratios), 4),
        "crossover": {f"batch_{size}": _find_crossover(points, size) for size in sizes},
        "points": [_describe_point(point) for point in points],
    }


def _describe_point(point: Point) -> dict[str, Any]:
    return {
        "synthetic": True,
        "batch_size": point.batch_size,
        "acceptance": point.acceptance,
        "tokens_per_second": round(median(point.with_speculation), 1),
        "tokens_per_second_off": round(median(point.without), 1),
        "ratio": round(median(point.ratios), 4),
        "spread": _spread(point.ratios),
        "noise": _spread(point.without_again),
        "never_below": round(min(point.ratios), 4),
        "expected_speedup": round(max(point.expected.speedup, 1.0), 4),
        "expected_drafts": point.expected.num_drafts if point.expected.speedup > 1 else 0,
        "should_speculate": point.expected.speedup > 1,
    }


def _find_crossover(points: Sequence[Point], batch_size: int) -> dict[str, float | None]:
    """Returns the least acceptance rates, of those measured, at which speculation is faster."""
    own = sorted(
        (point for point in points if point.batch_size == batch_size),
        key=lambda point: point.acceptance,
    )
    return {
        "measured_from": next(
            (each.acceptance for each in own if median(each.ratios) >= LEAST_GAIN), None
        ),
        "expected_from": next((each.acceptance for each in own if each.expected.speedup > 1), None),
    }


def _spread(ratios: Sequence[float]) -> dict[str, float] | None:
    """Returns median and quartiles; None without enough values."""
    if len(ratios) < 2:
        return None
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return {"median": round(middle, 4), "from": round(low, 4), "to": round(high, 4)}


def describe(report: Mapping[str, Any]) -> str:
    """Returns the report as a table, a line per point."""
    header = (
        *("batch", "acceptance", "tokens/s", "off", "ratio", "lower quartile"),
        *("upper quartile", "expected", "drafts"),
    )
    rows = [
        (
            *(point["batch_size"], point["acceptance"]),
            *(point["tokens_per_second"], point["tokens_per_second_off"], point["ratio"]),
            *(point["spread"]["from"], point["spread"]["to"]),
            *(point["expected_speedup"], point["expected_drafts"]),
        )
        for point in report["points"]
    ]
    noise = report["noise"]
    return "\n".join(
        [
            "synthetic: drafts are accepted by chance, the text means nothing",
            format_table(header, rows),
            f"ratio of two measurements without speculation: {noise['median']:.3f}, half of them "
            f"between {noise['from']:.3f} and {noise['to']:.3f}"
            if noise
            else "too few measurements to know the noise",
            f"never below {report['never_below']:.3f} of no speculation (in the median of "
            f"{report['pairs']} pairs); {LEAST_RATIO} is asked for",
        ]
    )
