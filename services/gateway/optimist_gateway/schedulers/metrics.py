"""Metrics of the schedulers, and what there is by the names that vLLM gives it."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from optimist.scheduler.v1.scheduler_pb2 import Stats
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.schedulers.client import SchedulerClient
from optimist_gateway.schedulers.pool import SchedulerPool


class SchedulerCollector(Collector):
    """Reads the pool whenever metrics are read."""

    def __init__(self, pool: SchedulerPool) -> None:
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
        yield GaugeMetricFamily(
            "optimist_gateway_requests_without_scheduler",
            "Requests that lost their scheduler and wait for one to go on at",
            self._pool.num_waiting,
        )
        yield CounterMetricFamily(
            "optimist_gateway_resumed_requests",
            "How often a request that lost its scheduler went on at another, or when it was back",
            self._pool.num_resumed,
        )

    def _each(self, name: str, text: str, value: Callable[[SchedulerClient], float]) -> Metric:
        family = GaugeMetricFamily(f"optimist_gateway_scheduler_{name}", text, labels=["scheduler"])
        for client in self._pool.clients:
            family.add_metric([client.peer.target], value(client))
        return family


_FINISHED_REASONS = {"stop_string": "stop"}
"""Our reasons that have another name at vLLM."""


class VllmCollector(Collector):
    """Counts nothing itself: tools that read vLLM's metrics get those that are here anyway."""

    def __init__(
        self, metrics: GatewayMetrics, stats: Callable[[], Stats | None], model_name: str
    ) -> None:
        """Takes the gateway's figures, and what returns the schedulers' latest, once known."""
        self._metrics, self._stats = metrics, stats
        self._labels = {"model_name": model_name, "engine": "0"}

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
        stats = self._stats()
        if stats is not None:
            yield from self._of_scheduler(stats)

    def _renamed(self, name: str, metrics: Iterable[Metric]) -> Iterable[Metric]:
        for metric in metrics:
            renamed = Metric(name, metric.documentation, metric.type)
            renamed.samples = [
                Sample(
                    name + sample.name.removeprefix(metric.name),
                    self._labels | sample.labels,
                    sample.value,
                )
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield renamed

    def _successes(self) -> Metric:
        counts: dict[str, float] = {}
        for metric in self._metrics.finished.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    reason = sample.labels["reason"]
                    reason = _FINISHED_REASONS.get(reason, reason)
                    counts[reason] = counts.get(reason, 0) + sample.value
        return self._counter("request_success", "Choices that ended", counts, "finished_reason")

    def _of_scheduler(self, stats: Stats) -> Iterable[Metric]:
        share = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        for name, text, value in (
            ("num_requests_running", "Requests with a slot", stats.num_running),
            ("num_requests_waiting", "Requests without a slot", stats.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks that requests hold", share),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
        for name, text, value in (
            ("num_preemptions", "Requests that lost their blocks", stats.num_preemptions),
            ("prefix_cache_queries", "Tokens looked up in the cache", stats.num_prefix_queries),
            ("prefix_cache_hits", "Tokens that the cache held", stats.num_prefix_hits),
            ("spec_decode_num_drafts", "Rows with drafts", stats.num_drafts),
            ("spec_decode_num_draft_tokens", "Drafts verified", stats.num_drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Drafts accepted", stats.num_accepted_tokens),
        ):
            yield self._counter(name, text, {"": value})
        positions = {str(index): one for index, one in enumerate(stats.num_accepted_at_positions)}
        text = "Drafts accepted, by their position"
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._counter(name, text, positions, "position")

    def _counter(self, name: str, text: str, values: Mapping[str, float], *label: str) -> Metric:
        """Returns a counter with a value for each of a further label, if there is one."""
        family = CounterMetricFamily(f"vllm:{name}", text, labels=[*self._labels, *label])
        for one, value in values.items():
            family.add_metric([*self._labels.values(), *([one] if label else [])], value)
        return family
