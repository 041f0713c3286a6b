"""A histogram whose observations have a weight, for what is known of several tokens at once."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry


class TokenHistogram(Collector):
    """Counts tokens by a number that is theirs.

    prometheus_client's own histogram would have to be told of each token. This one belongs to one
    thread.
    """

    def __init__(
        self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """Registers it.

        Args:
            name: Of the metric.
            documentation: What it tells.
            buckets: Upper bounds, ascending, without infinity.
            registry: Where it is registered.
        """
        self.name, self.documentation = name, documentation
        self._bounds = [*buckets, float("inf")]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, num_tokens: int) -> None:
        """Counts tokens with a value."""
        self._counts[bisect_left(self._bounds, value)] += num_tokens
        self._sum += value * num_tokens

    def collect(self) -> Iterable[Metric]:
        """Yields the metric."""
        names = [*map(repr, self._bounds[:-1]), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self.name, self.documentation, buckets, self._sum)
