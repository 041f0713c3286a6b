"""Every metric of the gateway."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from optimist_gateway.core.usage import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class GatewayMetrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "optimist_gateway_requests",
            "Requests by endpoint and outcome: an HTTP status, `disconnected` or `broken_stream`",
            ["endpoint", "outcome"],
            registry=self.registry,
        )
        self.running = Gauge(
            "optimist_gateway_requests_running",
            "Requests, each choice counted, that the scheduler works on or that wait there",
            registry=self.registry,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts")
        self.completion_tokens = self._counter("completion_tokens", "Tokens of answers")
        self.accepted_prediction_tokens = self._counter(
            "accepted_prediction_tokens", "Predicted tokens that were verified and kept"
        )
        self.rejected_prediction_tokens = self._counter(
            "rejected_prediction_tokens", "Predicted tokens that were verified and never kept"
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the parsed request to the first token of a choice",
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds",
            "Time between two steps of a choice over the tokens of the later one",
        )
        self.end_to_end = self._histogram(
            "end_to_end_seconds", "From the parsed request to the end of its answer"
        )

    def count_usage(self, usage: Usage) -> None:
        """Adds the account of one request."""
        self.prompt_tokens.inc(usage.prompt_tokens)
        self.completion_tokens.inc(usage.completion_tokens)
        self.accepted_prediction_tokens.inc(usage.accepted_prediction_tokens)
        self.rejected_prediction_tokens.inc(usage.rejected_prediction_tokens or 0)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"optimist_gateway_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"optimist_gateway_{name}", text, buckets=_SECONDS, registry=self.registry)
