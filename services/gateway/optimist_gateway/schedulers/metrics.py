"""Metrics of the gateway's schedulers."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from optimist_gateway.observing.metrics import MODEL
from optimist_gateway.schedulers.client import SchedulerClient
from optimist_gateway.schedulers.pool import SchedulerPool


class SchedulerCollector(Collector):
    """Reads the pool of each model whenever metrics are read."""

    def __init__(self, pools: Mapping[str, SchedulerPool]) -> None:
        """Takes the schedulers of models by the models' names."""
        self._pools = pools

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
            lambda client: float(len(client.requests)),
        )
        waiting = GaugeMetricFamily(
            "optimist_gateway_requests_without_scheduler",
            "Requests that lost their scheduler and wait for one to go on at",
            labels=[MODEL],
        )
        resumed = CounterMetricFamily(
            "optimist_gateway_requests_resumed",
            "How often a request that lost its scheduler went on at another, or when it was back",
            labels=[MODEL],
        )
        for model, pool in self._pools.items():
            waiting.add_metric([model], pool.num_waiting)
            resumed.add_metric([model], pool.num_resumed)
        yield waiting
        yield resumed

    def _each(self, name: str, text: str, value: Callable[[SchedulerClient], float]) -> Metric:
        name = f"optimist_gateway_scheduler_{name}"
        family = GaugeMetricFamily(name, text, labels=[MODEL, "scheduler"])
        for model, pool in self._pools.items():
            for client in pool.clients:
                family.add_metric([model, client.peer.target], value(client))
        return family
