"""What the gateway knows of its schedulers, as metrics."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from optimist_gateway.schedulers.client import SchedulerClient
from optimist_gateway.schedulers.pool import SchedulerPool


class SchedulerCollector(Collector):
    """Reads the pool whenever metrics are read."""

    def __init__(self, pool: SchedulerPool) -> None:
        """Takes the schedulers."""
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics."""
        yield self._each(
            "connected",
            "Whether the scheduler is connected, 1 or 0",
            lambda client: float(client.description is not None),
        )
        yield self._each(
            "sound",
            "Whether the scheduler works as far as is known, 1 or 0; others get requests last",
            lambda client: float(client.description is not None and client.is_sound),
        )
        yield self._each(
            "requests",
            "Requests of this gateway that are at the scheduler",
            lambda client: float(client.num_requests),
        )
        waiting = GaugeMetricFamily(
            "optimist_gateway_requests_without_scheduler",
            "Requests that lost their scheduler and wait for one to go on at",
        )
        waiting.add_metric([], self._pool.num_waiting)
        yield waiting
        resumed = CounterMetricFamily(
            "optimist_gateway_resumed_requests",
            "How often a request that lost its scheduler went on at another, or when it was back",
        )
        resumed.add_metric([], self._pool.num_resumed)
        yield resumed

    def _each(self, name: str, text: str, value: Callable[[SchedulerClient], float]) -> Metric:
        family = GaugeMetricFamily(f"optimist_gateway_scheduler_{name}", text, labels=["scheduler"])
        for client in self._pool.clients:
            family.add_metric([client.peer.target], value(client))
        return family
