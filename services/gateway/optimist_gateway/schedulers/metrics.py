"""Metrics of the schedulers, and what there is by the names that vLLM gives it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

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
            lambda client: float(client.num_requests),
        )
        waiting = GaugeMetricFamily(
            "optimist_gateway_requests_without_scheduler",
            "Requests that lost their scheduler and wait for one to go on at",
            labels=[MODEL],
        )
        resumed = CounterMetricFamily(
            "optimist_gateway_resumed_requests",
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
            ("vllm:prompt_tokens", metrics.prompt_tokens),
            ("vllm:generation_tokens", metrics.completion_tokens),
            ("vllm:time_to_first_token_seconds", metrics.time_to_first_token),
            ("vllm:inter_token_latency_seconds", metrics.inter_token_latency),
            ("vllm:request_time_per_output_token_seconds", metrics.time_per_output_token),
            ("vllm:e2e_request_latency_seconds", metrics.end_to_end),
            ("vllm:request_queue_time_seconds", metrics.queue),
            ("vllm:request_prompt_tokens", metrics.request_prompt_tokens),
            ("vllm:request_generation_tokens", metrics.request_completion_tokens),
        ):
            yield from self._renamed(name, source.collect())
        yield self._successes()
        if stats := {model: one for model, one in self._stats().items() if one is not None}:
            yield from self._of_schedulers(stats)

    def _renamed(self, name: str, metrics: Iterable[Metric]) -> Iterable[Metric]:
        for metric in metrics:
            renamed = Metric(name, metric.documentation, metric.type)
            renamed.samples = [
                Sample(
                    name + sample.name.removeprefix(metric.name),
                    {_NAMES.get(label, label): value for label, value in sample.labels.items()}
                    | _ENGINE,
                    sample.value,
                )
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield renamed

    def _successes(self) -> Metric:
        counts: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for metric in self._metrics.finished.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    reason = sample.labels["reason"]
                    reason = _FINISHED_REASONS.get(reason, reason)
                    counts[sample.labels[MODEL], reason] += sample.value
        return self._counter("request_success", "Choices that ended", counts, "finished_reason")

    def _of_schedulers(self, stats: Mapping[str, Stats]) -> Iterable[Metric]:
        for name, text, value in _GAUGES:
            labels = [_NAMES[MODEL], *_ENGINE]
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=labels)
            for model, one in stats.items():
                family.add_metric([model, *_ENGINE.values()], value(one))
            yield family
        for name, text, field in _COUNTERS:
            yield self._counter(
                name, text, {(model,): getattr(one, field) for model, one in stats.items()}
            )
        positions: dict[tuple[str, ...], float] = {
            (model, str(index)): count
            for model, one in stats.items()
            for index, count in enumerate(one.num_accepted_at_positions)
        }
        text = "Drafts accepted, by their position"
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._counter(name, text, positions, "position")

    def _counter(
        self, name: str, text: str, values: Mapping[tuple[str, ...], float], *label: str
    ) -> Metric:
        """Returns a counter with a value for each model, and each of a further label if any."""
        labels = [_NAMES[MODEL], *_ENGINE, *label]
        family = CounterMetricFamily(f"vllm:{name}", text, labels=labels)
        for (model, *rest), value in values.items():
            family.add_metric([model, *_ENGINE.values(), *rest], value)
        return family


def _used_share(stats: Stats) -> float:
    return 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0


_GAUGES: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("num_requests_running", "Requests with a slot", lambda stats: stats.num_running),
    ("num_requests_waiting", "Requests without a slot", lambda stats: stats.num_waiting),
    ("kv_cache_usage_perc", "Share of KV blocks that requests hold", _used_share),
)
_COUNTERS = (
    ("num_preemptions", "Requests that lost their blocks", "num_preemptions"),
    ("prefix_cache_queries", "Tokens looked up in the cache", "num_prefix_queries"),
    ("prefix_cache_hits", "Tokens that the cache held", "num_prefix_hits"),
    ("spec_decode_num_drafts", "Rows with drafts", "num_drafts"),
    ("spec_decode_num_draft_tokens", "Drafts verified", "num_drafted_tokens"),
    ("spec_decode_num_accepted_tokens", "Drafts accepted", "num_accepted_tokens"),
)
