"""Every metric of the gateway."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from optimist_common.observing.metrics import show_build
from optimist_gateway.core.answer.output import Usage

MODEL = "model"
"""Label with a model's name in the API."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)
_DELAYS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
DELAY_INTERVAL_SECONDS = 0.5
_TOKENS = tuple(float(2**power) for power in range(18))


class GatewayMetrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self, models: Sequence[str]) -> None:
        """Sets up those of the models of these names at 0."""
        self._models = models
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        show_build("gateway", self.registry)
        self.requests = self._counter(
            "requests",
            "Requests by endpoint and outcome: an HTTP status, `disconnected` or `broken_stream`",
            "endpoint",
            "outcome",
        )
        self.refusals = self._counter(
            "requests_refused",
            "Requests that were answered with an error of a status but 500, by its code",
            "reason",
        )
        self.finished = self._counter(
            "requests_finished",
            "Requests, each choice counted, by why they ended: stop, length, stop_string, error "
            "(those that failed) or abort (those that were not wanted any more)",
            MODEL,
            "reason",
        )
        self.running = self._gauge(
            "requests_in_flight",
            "Requests, each choice counted, that the scheduler works on or that wait there",
        )
        self.waiting = self._gauge(
            "requests_without_token", "Those among them without their first token yet"
        )
        self.prompt_tokens = self._model_counter("prompt_tokens", "Tokens of prompts")
        self.completion_tokens = self._model_counter("generation_tokens", "Tokens of answers")
        self.accepted_prediction_tokens = self._model_counter(
            "accepted_prediction_tokens", "Predicted tokens that were verified and kept"
        )
        self.rejected_prediction_tokens = self._model_counter(
            "rejected_prediction_tokens", "Predicted tokens that were verified and never kept"
        )
        self.request_prompt_tokens = self._model_histogram(
            "request_prompt_tokens", "Tokens of a request's prompt", _TOKENS
        )
        self.request_completion_tokens = self._model_histogram(
            "request_generation_tokens", "Tokens of a request's answers together", _TOKENS
        )
        self.queue = self._model_histogram(
            "request_queue_seconds",
            "Time for which a choice waited for a slot at the scheduler",
            _SECONDS,
        )
        self.time_to_first_token = self._model_histogram(
            "time_to_first_token_seconds",
            "From the parsed request to the first token of a choice",
            _SECONDS,
        )
        self.inter_token_latency = self._model_histogram(
            "inter_token_latency_seconds",
            "Time between two steps of a choice over the tokens of the later one, once per step",
            _TOKEN_SECONDS,
        )
        self.time_per_output_token = self._model_histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first of a choice",
            _TOKEN_SECONDS,
        )
        self.end_to_end = self._model_histogram(
            "request_seconds", "From the parsed request to the end of its answer", _SECONDS
        )
        self.event_loop_delay = self._histogram(
            "event_loop_delay_seconds",
            "How much later than it was due a timer ran, every half second",
            _DELAYS,
        )
        self.tasks = self._gauge(
            "event_loop_tasks", "Tasks of the event loop, counted every half second"
        )

    def count_refusal(self, status: int, reason: str) -> None:
        """Counts a request that ends with an error; one of our own making was not refused."""
        if status != HTTPStatus.INTERNAL_SERVER_ERROR:
            self.refusals.labels(reason).inc()

    def count_answer(self, model: str, usage: Usage, seconds: float) -> None:
        """Adds the account of one request to a model, and how long it took."""
        rejected = usage.rejected_prediction_tokens or 0
        self.prompt_tokens.labels(model).inc(usage.prompt_tokens)
        self.completion_tokens.labels(model).inc(usage.completion_tokens)
        self.accepted_prediction_tokens.labels(model).inc(usage.accepted_prediction_tokens)
        self.rejected_prediction_tokens.labels(model).inc(rejected)
        self.request_prompt_tokens.labels(model).observe(usage.prompt_tokens)
        self.request_completion_tokens.labels(model).observe(usage.completion_tokens)
        self.end_to_end.labels(model).observe(seconds)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"optimist_gateway_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"optimist_gateway_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        name = f"optimist_gateway_{name}"
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _model_counter(self, name: str, text: str) -> Counter:
        counter = self._counter(name, text, MODEL)
        for model in self._models:
            counter.labels(model)
        return counter

    def _model_histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = self._histogram(name, text, buckets, MODEL)
        for model in self._models:
            histogram.labels(model)
        return histogram


async def watch_event_loop(metrics: GatewayMetrics) -> None:
    """Notes how late the event loop comes to a timer, and its tasks; returns never."""
    while True:
        due = time.perf_counter() + DELAY_INTERVAL_SECONDS
        await asyncio.sleep(DELAY_INTERVAL_SECONDS)
        metrics.event_loop_delay.observe(max(time.perf_counter() - due, 0.0))
        metrics.tasks.set(len(asyncio.all_tasks()))
