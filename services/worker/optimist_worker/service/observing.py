"""What the worker shows of its steps: metrics, and spans of traced requests."""

import time

from prometheus_client import Counter, Gauge, Histogram

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.drafts import DraftSource
from optimist_common.observing.tracing import OFF, Span, Tracer
from optimist_worker.core.plan import StepResult

MIXED = "mixed"
"""Label of passes whose rows have drafts of several sources."""
IN_VAIN = "none"
"""Label of passes in which drafting brought no drafts."""

_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

DRAFT_SECONDS = Histogram(
    "optimist_worker_draft_seconds",
    "Time that the drafter took in a pass that drafted",
    ["source"],
    buckets=_SECONDS,
)
VERIFY_SECONDS = Histogram(
    "optimist_worker_verify_seconds",
    "Time of such a pass without that of the drafter",
    ["source"],
    buckets=_SECONDS,
)
STEP_SECONDS = Histogram(
    "optimist_worker_step_seconds",
    "Time from plan to result",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
STEP_TOKENS = Histogram(
    "optimist_worker_step_tokens",
    "Tokens fed per forward pass, drafts included",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
)
IDLE_SECONDS = Counter("optimist_worker_idle_seconds", "Time between steps with nothing to run")
ROWS = Counter("optimist_worker_step_rows", "Rows of all runs")
ROW_ERRORS = Counter("optimist_worker_row_errors", "Rows that failed")
DRAFTER_ERRORS = Counter("optimist_worker_drafter_errors", "Errors that cost drafts")
REPLACED_KERNELS = Gauge(
    "optimist_worker_replaced_kernels",
    "1 for a kernel that plain PyTorch replaces, or cuda_graphs that eager steps do, since it "
    "failed at start",
    ["kernel"],
)


def observe_step(result: StepResult, step_seconds: float, idle_seconds: float) -> None:
    """Counts one step, which took some seconds with drafting."""
    STEP_SECONDS.observe(step_seconds)
    if result.num_tokens:
        STEP_TOKENS.observe(result.num_tokens)
    IDLE_SECONDS.inc(idle_seconds)
    ROWS.inc(len(result.slots))
    ROW_ERRORS.inc(len(result.errors))
    sources = set(result.draft_sources.tolist()) - {int(DraftSource.TARGET)}
    if sources or result.draft_ns:
        label = IN_VAIN if not sources else MIXED
        if len(sources) == 1:
            label = DraftSource(sources.pop()).label
        draft_seconds = result.draft_ns / 1e9
        DRAFT_SECONDS.labels(label).observe(draft_seconds)
        VERIFY_SECONDS.labels(label).observe(max(step_seconds - draft_seconds, 0.0))


_COUNTS = (
    "optimist.num_drafted_tokens",
    "optimist.num_accepted_tokens",
    "optimist.num_emitted_tokens",
)


class RequestSpans:
    """The spans of the requests that hold a slot. It is the model thread's."""

    def __init__(self, tracer: Tracer = OFF, *, of_passes: bool = False) -> None:
        """Starts spans of a tracer; with `of_passes` each pass of a traced request is one too."""
        self._tracer, self._of_passes = tracer, of_passes
        self._spans: dict[int, Span] = {}

    def begin(self, request: worker_pb2.ExecuteRequest) -> None:
        """Ends the spans of the slots that a plan releases, and begins those of whom it admits."""
        if self._spans and request.released_slots:
            for slot in from_bytes(request.released_slots).tolist():
                self._end(slot)
        for admission in request.admissions:
            self._end(admission.slot)
            if not admission.trace_parent:
                continue
            attributes: dict[str, str | int] = {
                "optimist.request_id": admission.request_id,
                "optimist.slot": admission.slot,
                "optimist.num_prompt_tokens": admission.num_prompt_tokens,
                **dict.fromkeys((*_COUNTS, "optimist.num_passes", "optimist.pass_seconds"), 0),
            }
            parent, name = admission.trace_parent, "worker request"
            span = self._tracer.start(name, attributes, trace_parent=parent, kind="server")
            if span is not None:
                self._spans[admission.slot] = span

    def note(self, result: StepResult, step_ns: int) -> None:
        """Adds a run of a plan, which took `step_ns` and is over now, to its requests' spans."""
        if not self._spans:
            return
        now = time.time_ns()
        rows = zip(
            result.slots.tolist(),
            result.num_drafted_tokens.tolist(),
            result.num_accepted_tokens.tolist(),
            result.num_emitted_tokens.tolist(),
            strict=True,
        )
        for slot, *numbers in rows:
            if (span := self._spans.get(slot)) is None:
                continue
            counts = dict(zip(_COUNTS, numbers, strict=True))
            # A slot is released with the next plan, which may be long after the request ended.
            span.add(counts, now)
            span.add({"optimist.num_passes": 1, "optimist.pass_seconds": step_ns / 1e9}, now)
            if self._of_passes:
                parent, start = span.trace_parent, now - step_ns
                of_pass = self._tracer.start(
                    "worker pass", counts, trace_parent=parent, start_ns=start
                )
                if of_pass is not None:
                    of_pass.end()

    def end_all(self) -> None:
        """Ends all spans: the stream is over."""
        for slot in list(self._spans):
            self._end(slot)

    def _end(self, slot: int) -> None:
        if (span := self._spans.pop(slot, None)) is not None:
            span.end()
