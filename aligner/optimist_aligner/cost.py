"""What a forward pass costs by the number of its tokens, learnt from the passes themselves."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Variances are relative to the variance of one step's time.
STEP_NOISE = 1.0
TIMED_NOISE = 1 / 16
"""Of a point that the worker timed at start, over several passes with nothing else going on."""
GUESS = 4.0
"""Of a knot whose value is only a guess from its neighbours."""
DRIFT = 1 / 256
"""Growth per observation; makes the mean of a knot that is always observed span about 16 steps."""
CLIP = 4.0
"""A step counts as at most this many times what it was expected to take."""
HORIZON = 1 << 40
"""Tokens up to which the curve is extended; more than any pass has."""


class CostCurve:
    """Time of a pass in nanoseconds as a piecewise linear, non-decreasing function of its tokens.

    The knots are powers of two; there is one once a pass near it was seen. A step moves the two
    knots around its number of tokens, each by its share in the interpolated time and by how
    uncertain it is: a Kalman filter of a random walk per knot, without covariances. A knot seen
    for the first time takes most of the step's time over, one that is always seen keeps an
    exponential mean, one not seen for long learns fast again. The same observations in the same
    order give the same curve.
    """

    def __init__(self, num_tokens: Sequence[int] = (), microseconds: Sequence[int] = ()) -> None:
        """Starts from timed passes, or from nothing: then every pass costs the same.

        Args:
            num_tokens: Tokens of the passes, ascending [num_points].
            microseconds: Their times [num_points].

        Raises:
            ValueError: The points are not ascending, not positive, or not as many times as counts.
        """
        if len(num_tokens) != len(microseconds):
            raise ValueError(
                f"cost_us has {len(microseconds)} elements, cost_num_tokens {len(num_tokens)}"
            )
        self._tokens: list[int] = []
        self._ns: list[float] = []
        self._variances: list[float] = []
        self._fit: tuple[list[float], list[float]] | None = None
        last = 0
        for tokens, time in zip(num_tokens, microseconds, strict=True):
            if tokens <= last:
                raise ValueError(f"cost_num_tokens must ascend from 1: {tokens} follows {last}")
            if time <= 0:
                raise ValueError(f"cost_us must be positive, not {time}")
            last = int(tokens)
            self._update(last, time * 1e3, TIMED_NOISE)

    @property
    def knots(self) -> list[float]:
        """Numbers of tokens at which the slope may change, ascending [num_knots]."""
        return self._fitted()[0][:-1]

    @property
    def steepest(self) -> float:
        """The most that one more token costs anywhere, in nanoseconds."""
        points = zip(*self._fitted(), strict=True)
        return max(
            ((most - least) / (end - first) for (first, least), (end, most) in pairwise(points)),
            default=0.0,
        )

    def observe(self, num_tokens: int, step_ns: int) -> None:
        """Learns from a pass of `num_tokens` tokens that took `step_ns` nanoseconds.

        A pass without tokens or without a measured time teaches nothing.
        """
        if num_tokens > 0 and step_ns > 0:
            self._update(num_tokens, float(step_ns), STEP_NOISE)

    def cost(self, num_tokens: npt.ArrayLike) -> FloatArray:
        """Returns the expected time of passes in nanoseconds, [num_passes] for [num_passes].

        Below the first knot the curve is flat. Beyond the last it goes on with its last slope, but
        never faster than in proportion: two passes of n tokens do the work of one of 2 n. Without
        any knowledge every pass costs 1.
        """
        tokens, ns = self._fitted()
        return np.asarray(np.interp(np.asarray(num_tokens, np.float64), tokens, ns))

    def cost_of(self, num_tokens: int) -> float:
        """Returns the same of one pass, in less time."""
        tokens, ns = self._fitted()
        index = bisect_right(tokens, num_tokens)
        if index == 0 or index == len(tokens):
            return ns[max(index - 1, 0)]
        (first, end), (least, most) = tokens[index - 1 : index + 1], ns[index - 1 : index + 1]
        return (most - least) / (end - first) * (num_tokens - first) + least

    def with_line(self, constant: float, slope: float) -> "CostCurve":
        """Returns a curve that costs so much more, to be read only.

        Args:
            constant: Nanoseconds of any pass.
            slope: Nanoseconds of each token of a pass.
        """
        tokens, ns = self._fitted()
        curve = CostCurve()
        curve._fit = (
            tokens,
            [time + constant + slope * number for number, time in zip(tokens, ns, strict=True)],
        )
        return curve

    def _update(self, num_tokens: int, ns: float, noise: float) -> None:
        """Moves the knots around `num_tokens` towards `ns`, whose variance is `noise`."""
        reach = self._tokens[-1] if self._tokens else num_tokens
        lower = 1 << (num_tokens.bit_length() - 1)
        high_share = num_tokens / lower - 1
        rows = [(self._know(lower, ns), 1 - high_share)]
        if high_share:
            rows.append((self._know(2 * lower, ns), high_share))
        present = sum(share * self._ns[i] for i, share in rows)
        # Where nothing as large was seen yet, the expectation is as uncertain as the distance.
        most = CLIP * present * max(1.0, num_tokens / reach)
        error = min(ns, most) - present
        total = noise + sum(share * share * self._variances[i] for i, share in rows)
        for i, share in rows:
            gain = self._variances[i] * share / total
            self._ns[i] = max(1.0, self._ns[i] + gain * error)
            self._variances[i] *= 1 - gain * share
        self._variances = [min(GUESS, variance + DRIFT) for variance in self._variances]
        self._fit = None

    def _know(self, knot: int, ns: float) -> int:
        """Returns the index of a knot.

        One that is not there yet is added on the present curve or, if there is none, at `ns`.
        """
        index = bisect_left(self._tokens, knot)
        if index < len(self._tokens) and self._tokens[index] == knot:
            return index
        value = float(self.cost(knot)) if self._tokens else ns
        self._tokens.insert(index, knot)
        self._ns.insert(index, value)
        self._variances.insert(index, GUESS)
        self._fit = None
        return index

    def _fitted(self) -> tuple[list[float], list[float]]:
        """Returns knots, their non-decreasing times, and a point far beyond [num_knots + 1].

        Both are kept until the next update.
        """
        if self._fit is None:
            tokens = self._tokens
            ns = self._ns
            if ns != sorted(ns):
                ns = _fit_ascending(ns, [1 / variance for variance in self._variances])
            end = ns[-1] if ns else 1.0
            if len(ns) > 1:
                slope = min((ns[-1] - ns[-2]) / (tokens[-1] - tokens[-2]), ns[-1] / tokens[-1])
                end += slope * (HORIZON - tokens[-1])
            self._fit = [*tokens, HORIZON], [*ns, end]
        return self._fit


def _fit_ascending(values: list[float], weights: list[float]) -> list[float]:
    """Returns the non-decreasing sequence with the least weighted squared distance to `values`.

    Pool adjacent violators (Ayer et al., 1955): neighbours in the wrong order share their mean.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before, weight_before, count = pools.pop()
            both = weight_before + pool[1]
            mean = (before * weight_before + pool[0] * pool[1]) / both
            pool = (mean, both, count + pool[2])
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]
