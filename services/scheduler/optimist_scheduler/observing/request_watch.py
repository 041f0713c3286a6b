"""How long requests wait for a slot, and a span for each one that is traced."""

from dataclasses import dataclass

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import INT32_BYTES
from optimist_common.drafts import DraftSource
from optimist_common.observing.tracing import AttributeValue, Span, Tracer
from optimist_scheduler.core.base.values import Ended, Finished, FinishReason, StepOutputs
from optimist_scheduler.core.requests.request import NewRequest

_FAILURES = (FinishReason.REFUSED, FinishReason.OVERLOADED, FinishReason.ERROR)


@dataclass(slots=True)
class _Watched:
    added: float
    span: Span | None
    queue_us: int = 0


class RequestWatch:
    """The requests that have not ended, by id. Times are in seconds, from any one clock."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._watched: dict[str, _Watched] = {}
        self._silent: dict[tuple[int, int], Span] = {}
        """Spans of requests without a token yet, by owner and handle."""
        self.trace_parents: dict[str, str] = {}
        """What worker and proposers are sent, of requests that are traced."""

    def add(self, new: NewRequest, trace_parent: str, now: float) -> None:
        """Takes a request that was added."""
        span = self._start(new, trace_parent) if trace_parent else None
        self._watched[new.request_id] = _Watched(now, span)
        if span is not None:
            self._silent[new.owner, new.handle] = span
            self.trace_parents[new.request_id] = span.trace_parent

    def plan(self, plan: worker_pb2.ExecuteRequest, now: float) -> None:
        """Notes who gets a slot with a plan."""
        for admission in plan.admissions:
            watched = self._watched.get(admission.request_id)
            if watched is None:
                continue
            if not watched.queue_us:
                watched.queue_us = max(round((now - watched.added) * 1e6), 1)
            if watched.span is not None:
                cached = len(admission.cached_blocks) // INT32_BYTES
                watched.span.event("admitted", {"optimist.num_cached_blocks": cached})

    def deliver(self, outputs: StepOutputs) -> None:
        """Notes who gets a first token."""
        if not self._silent:
            return
        for owner, handle in zip(outputs.owners.tolist(), outputs.handles.tolist(), strict=True):
            if (span := self._silent.pop((owner, handle), None)) is not None:
                span.event("first token")

    def end(self, end: Ended) -> int:
        """Forgets a request that ended; returns its `queue_us`."""
        watched = self._watched.pop(end.request_id, None)
        if watched is None:
            return 0
        if watched.span is not None:
            del self.trace_parents[end.request_id]
            self._silent.pop((end.owner, end.handle), None)
            watched.span.set(_attributes(end.finished, watched.queue_us))
            is_failure = end.finished.reason in _FAILURES
            watched.span.end(end.finished.message or "failed" if is_failure else "")
        return watched.queue_us

    def _start(self, new: NewRequest, trace_parent: str) -> Span | None:
        return self._tracer.start(
            "scheduler request",
            {
                "optimist.request_id": new.request_id,
                "optimist.num_prompt_tokens": len(new.prompt_token_ids),
                "optimist.num_predicted_tokens": len(new.predicted_token_ids),
                "optimist.max_tokens": new.max_tokens,
            },
            trace_parent=trace_parent,
            kind="server",
        )


def _attributes(finished: Finished, queue_us: int) -> dict[str, AttributeValue]:
    by_source = {
        f"optimist.num_tokens.{DraftSource(source).label}": count
        for source, count in enumerate(finished.num_tokens_by_source)
        if count
    }
    return {
        "optimist.finish_reason": finished.reason.value,
        "optimist.queue_seconds": queue_us / 1e6,
        "optimist.num_passes": finished.num_passes,
        "optimist.accepted_prediction_tokens": finished.accepted_prediction_tokens,
        "optimist.rejected_prediction_tokens": finished.rejected_prediction_tokens,
        **by_source,
    }
