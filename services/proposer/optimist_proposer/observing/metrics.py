"""What the proposer counts, for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class FrequentHistogram(Collector):
    """A histogram that one thread fills; without the library's locks it costs a fifth."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        """Registers it with the upper bounds of its buckets, ascending."""
        self._name, self._documentation = name, documentation
        self._bounds = (*buckets, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        REGISTRY.register(self)

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yields what was counted."""
        buckets = zip(map(floatToGoString, self._bounds), accumulate(self._counts), strict=True)
        yield HistogramMetricFamily(
            self._name, self._documentation, buckets=list(buckets), sum_value=self._sum
        )


OBSERVATIONS = Counter("optimist_proposer_observations", "Observations received")
WINDOWS = Counter("optimist_proposer_windows", "Windows sent")
GAPS = Counter("optimist_proposer_gaps", "Requests whose observations could not be applied")
REFUSALS = Counter("optimist_proposer_refusals", "Requests that exceed a limit")
FORGOTTEN = Counter("optimist_proposer_forgotten", "Requests forgotten for lack of memory")
REPLAYED_TOKENS = Counter(
    "optimist_proposer_replayed_tokens", "Output tokens learned from the store"
)
BATCH_SECONDS = Histogram(
    "optimist_proposer_batch_seconds",
    "Time from a batch to its answer, what other batches took meanwhile included",
    buckets=(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5),
)
OBSERVATION_SECONDS = FrequentHistogram(
    "optimist_proposer_observation_seconds",
    "CPU time to observe new tokens of a request and to propose",
    buckets=(1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1),
)
LIVE_REQUESTS = Gauge("optimist_proposer_live_requests", "Requests in memory")
REFERENCES = Gauge("optimist_proposer_references", "Sources in memory, shared by requests")
MEMORY_BYTES = Gauge("optimist_proposer_memory_bytes", "Memory of requests and sources, roughly")
WRITES_DROPPED = Counter(
    "optimist_proposer_writes_dropped", "Requests whose writes to the store were given up"
)
STORE_ERRORS = Counter("optimist_proposer_store_errors", "Calls that the store failed")
REDIS_ROUND_TRIPS = Counter("optimist_proposer_redis_round_trips", "Calls of Redis")
BREAKER_OPEN = Gauge(
    "optimist_proposer_breaker_open", "1 while Redis is left alone because it failed"
)
