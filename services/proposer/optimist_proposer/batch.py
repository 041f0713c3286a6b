"""One batch of opens, observations and closes; spans of the requests that are traced."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from optimist_common.observing.tracing import OFF, Span, Tracer
from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.messages import Answer, Observation, Open
from optimist_proposer.following import Following
from optimist_proposer.observing import metrics
from optimist_proposer.reading import StoreReader
from optimist_proposer.store.store import OutputStore, WriteBehind

_BATCHES, _TOKENS = "optimist.num_batches", "optimist.num_observed_tokens"
_WINDOWS, _GAPS = "optimist.num_windows", "optimist.num_gaps"

Grouped = dict[str, list[Observation]]


class RequestSpans:
    """The spans of the traced requests that are followed, a bounded number of them."""

    def __init__(self, tracer: Tracer = OFF, max_spans: int = 4096) -> None:
        """Traces nothing yet; beyond `max_spans` the oldest is ended: a scheduler may be gone."""
        self._tracer, self._max_spans = tracer, max_spans
        self._spans: dict[str, Span] = {}

    def open(self, request: Open) -> None:
        """Begins the span of a request that is opened, if it is traced."""
        if not request.trace_parent:
            return
        self.end(request.request_id)
        span = self._tracer.start(
            "proposer request",
            {
                "optimist.request_id": request.request_id,
                "optimist.num_predictions": len(request.predictions),
                "optimist.num_predicted_tokens": sum(map(len, request.predictions)),
                **dict.fromkeys((_BATCHES, _TOKENS, _WINDOWS, _GAPS), 0),
            },
            trace_parent=request.trace_parent,
            kind="server",
        )
        if span is None:
            return
        self._spans[request.request_id] = span
        if len(self._spans) > self._max_spans:
            self.end(next(iter(self._spans)))

    def note(self, grouped: Mapping[str, Sequence[Observation]], answer: Answer) -> None:
        """Adds a batch of observations and its answer; ends the spans of what was refused."""
        if not self._spans:
            return
        for request_id in self._spans.keys() & {*grouped, *answer.windows, *answer.gaps}:
            observations = grouped.get(request_id, ())
            self._spans[request_id].add(
                {
                    _BATCHES: request_id in grouped,
                    _TOKENS: sum(len(one.token_ids) for one in observations),
                    _WINDOWS: request_id in answer.windows,
                    _GAPS: request_id in answer.gaps,
                }
            )
        for request_id, reason in answer.refusals.items():
            self.end(request_id, reason)

    def end(self, request_id: str, reason: str = "", live: LiveRequest | None = None) -> None:
        """Ends a span, if there is one; `reason` is why a request goes on and is not followed."""
        if (span := self._spans.pop(request_id, None)) is not None:
            if live is not None:
                span.set({"optimist.cpu_seconds": live.spent_seconds})
            span.end(reason)


class BatchProposer:
    """Applies batches; asks the store only for requests of which this process knows too little."""

    def __init__(
        self,
        following: Following,
        store: OutputStore | None = None,
        writer: WriteBehind | None = None,
        spans: RequestSpans | None = None,
    ) -> None:
        """Takes where requests live, and what replicas share, if they share anything."""
        self._following, self._writer = following, writer
        self._reader = StoreReader(following, store)
        self._spans = spans or RequestSpans()

    async def apply(
        self, opens: Sequence[Open], observations: Sequence[Observation], closes: Sequence[str]
    ) -> Answer:
        """Applies opens, then observations, then closes; never raises for the store's sake."""
        answer, started = Answer(), time.perf_counter()
        for request in opens:
            self._spans.open(request)
            self._open(request, answer)
            # To prepare sources takes time, in which other streams and writes need not wait.
            await asyncio.sleep(0)
        grouped: Grouped = {}
        for observation in observations:
            if observation.request_id not in answer.refusals:
                grouped.setdefault(observation.request_id, []).append(observation)
        await self._reader.catch_up(grouped)
        for live in self._following.observe(grouped, answer):
            if self._writer is not None:
                self._writer.note(live)
        if self._writer is not None:
            for request_id in grouped.keys() & answer.refusals.keys():
                self._writer.close(request_id)
        self._spans.note(grouped, answer)
        for request_id in closes:
            self._spans.end(request_id, live=self._following.get(request_id))
            self._following.drop(request_id)
            if self._writer is not None:
                self._writer.close(request_id)
        _count(len(observations), answer)
        metrics.BATCH_SECONDS.observe(time.perf_counter() - started)
        return answer

    def _open(self, request: Open, answer: Answer) -> None:
        live = self._following.open(request, answer)
        if self._writer is None:
            return
        if live is None:
            self._writer.close(request.request_id)
        else:
            self._writer.note(live)


def _count(num_observations: int, answer: Answer) -> None:
    """Counts a batch for the metrics; what there seldom is costs nothing."""
    metrics.OBSERVATIONS.inc(num_observations)
    metrics.WINDOWS.inc(len(answer.windows))
    if answer.gaps:
        metrics.GAPS.inc(len(answer.gaps))
    if answer.refusals:
        metrics.REFUSALS.inc(len(answer.refusals))
