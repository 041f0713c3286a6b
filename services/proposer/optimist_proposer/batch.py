"""One batch of opens, observations and closes; spans of the requests that are traced."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from optimist_common.observing.tracing import OFF, Span, Tracer
from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.messages import Answer, Observation, Open
from optimist_proposer.core.sources import Prepared, SourceName, unpack_sources
from optimist_proposer.core.stored_request import StoredRequest
from optimist_proposer.following import Following
from optimist_proposer.observing import metrics
from optimist_proposer.store.store import OutputStore, StoreError, WriteBehind

logger = logging.getLogger(__name__)

_LOG_INTERVAL_SECONDS = 10.0
_BATCHES, _TOKENS = "optimist.num_batches", "optimist.num_observed_tokens"
_WINDOWS, _GAPS = "optimist.num_windows", "optimist.num_gaps"

Grouped = dict[str, list[Observation]]


class RequestSpans:
    """The spans of the traced requests that are followed, a bounded number of them."""

    def __init__(self, tracer: Tracer = OFF, max_spans: int = 4096) -> None:
        """Traces nothing yet.

        Args:
            tracer: Starts the spans.
            max_spans: Beyond as many the oldest is ended: a scheduler may be gone.
        """
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
        """Ends a span, if there is one.

        Args:
            request_id: Of the request.
            reason: Why it is not followed any more although it goes on.
            live: The request, if it is still here.
        """
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
        self._following, self._store, self._writer = following, store, writer
        self._spans = spans or RequestSpans()
        self._next_log = float("-inf")

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
        await self._catch_up(grouped)
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

    async def _catch_up(self, grouped: Grouped) -> None:
        """Reads the requests of which too little is known here."""
        if self._store is None:
            return
        lacking = [name for name, ones in grouped.items() if self._lacks_tokens(name, ones)]
        if not lacking:
            return
        try:
            found = {
                request_id: stored
                for request_id, stored in zip(lacking, await self._store.read(lacking), strict=True)
                if stored is not None
            }
            values = await self._read_sources(self._store, found)
        except StoreError as error:
            self._note(error)
            return
        for request_id, stored in found.items():
            self._adopt(request_id, stored, values)

    async def _read_sources(
        self, store: OutputStore, found: dict[str, StoredRequest]
    ) -> dict[SourceName, bytes]:
        """Returns the packed sources that are not here, as far as the store has them."""
        names = [
            name
            for name in {stored.source_name for stored in found.values()}
            if self._following.get_sources(name) is None
        ]
        if not names:
            return {}
        values = await store.read_sources(names)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _lacks_tokens(self, request_id: str, ones: Sequence[Observation]) -> bool:
        live = self._following.get(request_id)
        if live is None:
            return True
        num_known = live.num_known
        for one in ones:
            if one.position > num_known:
                return True
            num_known = max(num_known, one.position + len(one.token_ids))
        return False

    def _adopt(
        self, request_id: str, stored: StoredRequest, values: dict[SourceName, bytes]
    ) -> None:
        try:
            prepared = self._find_sources(stored.source_name, values)
            if prepared is not None:
                self._following.adopt(request_id, stored, prepared)
        except ValueError as error:
            logger.warning("request %s is taken as unknown: %s", request_id, error)
        except Exception:
            about = {"request_id": request_id}
            logger.exception("request %s is taken as unknown", request_id, extra=about)
            # It may have stopped half way; the request is opened anew, with its whole output.
            self._following.drop(request_id)

    def _find_sources(self, name: SourceName, values: dict[SourceName, bytes]) -> Prepared | None:
        prepared = self._following.get_sources(name)
        if prepared is None and name in values:
            prepared = self._following.prepare(name, unpack_sources(values[name]))
        return prepared

    def _note(self, error: StoreError) -> None:
        metrics.STORE_ERRORS.inc()
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + _LOG_INTERVAL_SECONDS
            logger.warning("requests of other replicas are unknown for now: %s", error)


def _count(num_observations: int, answer: Answer) -> None:
    """Counts a batch for the metrics; what there seldom is costs nothing."""
    metrics.OBSERVATIONS.inc(num_observations)
    metrics.WINDOWS.inc(len(answer.windows))
    if answer.gaps:
        metrics.GAPS.inc(len(answer.gaps))
    if answer.refusals:
        metrics.REFUSALS.inc(len(answer.refusals))
