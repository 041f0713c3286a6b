"""The gateway's and the scheduler's figures by the names that vLLM gives them."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.schedulers.stats import SchedulerStats

_FINISHED_REASONS = {"stop_string": "stop"}
"""Our reasons that have another name at vLLM."""


class VllmCollector(Collector):
    """Counts nothing itself: tools that read vLLM's metrics get those that are here anyway."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        stats: Callable[[], SchedulerStats | None],
        model_name: str,
    ) -> None:
        """Takes the figures.

        Args:
            metrics: The gateway's.
            stats: Returns the scheduler's latest; None while it is not known.
            model_name: Value of the label `model_name`.
        """
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
            yield from self._of_drafts(stats)

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
        name = "vllm:request_success"
        family = CounterMetricFamily(
            name, "Choices that ended", labels=[*self._labels, "finished_reason"]
        )
        for reason, count in counts.items():
            family.add_metric([*self._labels.values(), reason], count)
        return family

    def _of_scheduler(self, stats: SchedulerStats) -> Iterable[Metric]:
        yield self._gauge("num_requests_running", "Requests with a slot", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests without a slot", stats.num_waiting)
        yield self._gauge(
            "kv_cache_usage_perc", "Share of KV blocks that requests hold", stats.kv_usage
        )
        yield self._counter(
            "num_preemptions", "Requests that lost their blocks", [stats.num_preemptions]
        )
        yield self._counter(
            "prefix_cache_queries", "Tokens looked up in the cache", [stats.num_prefix_queries]
        )
        yield self._counter(
            "prefix_cache_hits", "Tokens that the cache held", [stats.num_prefix_hits]
        )

    def _of_drafts(self, stats: SchedulerStats) -> Iterable[Metric]:
        yield self._counter("spec_decode_num_drafts", "Rows with drafts", [stats.num_drafts])
        yield self._counter(
            "spec_decode_num_draft_tokens", "Drafts verified", [stats.num_drafted_tokens]
        )
        yield self._counter(
            "spec_decode_num_accepted_tokens", "Drafts accepted", [stats.num_accepted_tokens]
        )
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted, by their position",
            stats.num_accepted_at_positions,
            by_position=True,
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(
        self, name: str, text: str, values: Sequence[int], *, by_position: bool = False
    ) -> Metric:
        labels = [*self._labels, "position"] if by_position else list(self._labels)
        family = CounterMetricFamily(f"vllm:{name}", text, labels=labels)
        for position, value in enumerate(values):
            ends = [str(position)] if by_position else []
            family.add_metric([*self._labels.values(), *ends], value)
        return family
