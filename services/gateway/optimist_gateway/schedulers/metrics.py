"""Metrics of the schedulers, and what there is by the names that vLLM gives it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from optimist.scheduler.v1.scheduler_pb2 import Stats
from optimist_gateway.observing.metrics import MODEL, GatewayMetrics
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


_FINISHED_REASONS = {"stop_string": "stop"}
"""Our reasons that have another name at vLLM."""
_NAMES = {MODEL: "model_name"}
"""Our labels that have another name at vLLM."""
_ENGINE = {"engine": "0"}
"""A label that all of vLLM's metrics have."""


class VllmCollector(Collector):
    """Counts nothing itself: tools that read vLLM's metrics get those that are here anyway."""

    def __init__(
        self, metrics: GatewayMetrics, stats: Callable[[], Mapping[str, Stats | None]]
    ) -> None:
        """Takes the gateway's figures, and what returns those of schedulers by model, if known."""
        self._metrics, self._stats = metrics, stats

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics."""
        metrics = self._metrics
        for name, source in (
            ("prompt_tokens", metrics.prompt_tokens),
            ("generation_tokens", metrics.completion_tokens),
            ("time_to_first_token_seconds", metrics.time_to_first_token),
            ("inter_token_latency_seconds", metrics.inter_token_latency),
            ("request_time_per_output_token_seconds", metrics.time_per_output_token),
            ("e2e_request_latency_seconds", metrics.end_to_end),
            ("request_queue_time_seconds", metrics.queue),
            ("request_prompt_tokens", metrics.request_prompt_tokens),
            ("request_generation_tokens", metrics.request_completion_tokens),
        ):
            for metric in source.collect():
                yield _as_of_vllm(name, metric)
        families = [self._successes()]
        if stats := {model: one for model, one in self._stats().items() if one is not None}:
            families += self._of_schedulers(stats)
        for family in families:
            yield _as_of_vllm(family.name, family)

    def _successes(self) -> Metric:
        counts: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for metric in self._metrics.finished.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    reason = sample.labels["reason"]
                    reason = _FINISHED_REASONS.get(reason, reason)
                    counts[sample.labels[MODEL], reason] += sample.value
        labels = [MODEL, "finished_reason"]
        family = CounterMetricFamily("request_success", "Choices that ended", labels=labels)
        for names, count in counts.items():
            family.add_metric(names, count)
        return family

    def _of_schedulers(self, stats: Mapping[str, Stats]) -> Iterable[Metric]:
        for kind, figures in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, value in figures:
                family = kind(name, text, labels=[MODEL])
                for model, one in stats.items():
                    family.add_metric([model], value(one))
                yield family
        name, text = "spec_decode_num_accepted_tokens_per_pos", "Drafts accepted, by their position"
        positions = CounterMetricFamily(name, text, labels=[MODEL, "position"])
        for model, one in stats.items():
            for index, count in enumerate(one.num_accepted_at_positions):
                positions.add_metric([model, str(index)], count)
        yield positions


def _as_of_vllm(name: str, metric: Metric) -> Metric:
    """Returns a metric by the name and with the labels that vLLM gives it."""
    renamed = Metric(f"vllm:{name}", metric.documentation, metric.type)
    renamed.samples = [
        Sample(
            renamed.name + sample.name.removeprefix(metric.name),
            {_NAMES.get(label, label): value for label, value in sample.labels.items()} | _ENGINE,
            sample.value,
        )
        for sample in metric.samples
        if not sample.name.endswith("_created")
    ]
    return renamed


def _used_share(stats: Stats) -> float:
    return 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0


_GAUGES: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("num_requests_running", "Requests with a slot", attrgetter("num_running")),
    ("num_requests_waiting", "Requests without a slot", attrgetter("num_waiting")),
    ("kv_cache_usage_perc", "Share of KV blocks that requests hold", _used_share),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("num_preemptions", "Requests that lost their blocks", attrgetter("num_preemptions")),
    ("prefix_cache_queries", "Tokens looked up in the cache", attrgetter("num_prefix_queries")),
    ("prefix_cache_hits", "Tokens that the cache held", attrgetter("num_prefix_hits")),
    ("spec_decode_num_drafts", "Rows with drafts", attrgetter("num_drafts")),
    ("spec_decode_num_draft_tokens", "Drafts verified", attrgetter("num_drafted_tokens")),
    ("spec_decode_num_accepted_tokens", "Drafts accepted", attrgetter("num_accepted_tokens")),
)
