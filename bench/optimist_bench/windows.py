"""`optimist bench windows`: what proposers cost on the way from one pass to the next."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import sub
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Literal

from pydantic import Field
from tokenizers import Tokenizer

from optimist.scheduler.v1 import scheduler_pb2
from optimist_bench.harness.case_text import functions
from optimist_bench.harness.command import ProposerAlgorithm, format_table, run_command
from optimist_bench.harness.pair import Pair, load_pairs, load_tokenizer, make_pair
from optimist_bench.harness.process_time import find_replicas, read_cpu_seconds
from optimist_bench.harness.services import SchedulerStream, open_stream, read_metrics, running
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.process import ServiceSpec
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.health import is_serving
from optimist_common.settings import ServiceSettings


@dataclass(slots=True)
class Totals:
    """What came of all requests."""

    all_right: bool = True
    num_tokens: int = 0
    num_passes: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    seconds: float = 0.0
    stats: scheduler_pb2.Stats = field(default_factory=scheduler_pb2.Stats)
    """The scheduler's, at the end."""


class WindowLoad:
    """One gateway's stream to the scheduler; the first token of a prompt is the pair's number."""

    def __init__(
        self, scheduler: str, pairs: Sequence[Pair], num_requests: int, concurrency: int
    ) -> None:
        """Takes the scheduler's host:port, the pairs, and how many requests to send in all."""
        self._address, self._pairs = scheduler, pairs
        self._num_requests, self._concurrency = num_requests, concurrency
        self._num_added = 0
        self._texts: dict[int, list[int]] = {}
        """Output so far, by handle, of the requests that run."""
        self._totals = Totals()

    async def run(self) -> Totals:
        """Runs all requests.

        Raises:
            RuntimeError: The scheduler refuses a command, or ends the stream.
        """
        async with open_stream(self._address) as stream:
            started = perf_counter()
            for _ in range(min(self._concurrency, self._num_requests)):
                await self._add(stream)
            while self._texts:
                await self._read(stream)
            self._totals.seconds = perf_counter() - started
            self._totals.stats = await stream.read_stats()
        return self._totals

    async def _add(self, stream: SchedulerStream) -> None:
        self._num_added += 1
        handle = self._num_added
        number = (handle - 1) % len(self._pairs)
        pair = self._pairs[number]
        self._texts[handle] = []
        add = scheduler_pb2.Add(
            handle=handle,
            request_id=f"windows-{handle}",
            prompt_token_ids=to_bytes([number]),
            predicted_token_ids=to_bytes(pair.predicted),
            max_tokens=len(pair.truth),
        )
        await stream.add(add)

    async def _read(self, stream: SchedulerStream) -> None:
        response = await stream.read()
        tokens, start = from_bytes(response.token_ids).tolist(), 0
        counts = from_bytes(response.num_tokens).tolist()
        for handle, count in zip(from_bytes(response.handles).tolist(), counts, strict=True):
            self._texts[handle] += tokens[start : start + count]
            start += count
        for finished in response.finished:
            self._end(finished)
            if self._num_added < self._num_requests:
                await self._add(stream)

    def _end(self, finished: scheduler_pb2.Finished) -> None:
        totals, text = self._totals, self._texts.pop(finished.handle)
        truth = self._pairs[(finished.handle - 1) % len(self._pairs)].truth
        totals.all_right &= text == list(truth)
        totals.num_tokens += len(text)
        totals.num_passes += finished.num_passes
        totals.num_accepted += finished.accepted_prediction_tokens
        totals.num_rejected += finished.rejected_prediction_tokens


NUM_FUNCTIONS = 24
"""Of each generated text."""
NUM_TEXTS = 32
_HISTOGRAM = "optimist_scheduler_proposer_wait_seconds_bucket"
_WINDOWS = "optimist_scheduler_windows_total"


class WindowsSettings(ServiceSettings):
    """Runs requests with predictions on a simulated worker, with real proposers and scheduler.

    The model says the text of each edit; passes take a given time. --json prints the report as one
    line of JSON instead.
    """

    section: ClassVar[str] = "bench_windows"

    pairs: str = Field("", description="JSON lines with `before` and `after`; empty: generated")
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer file of Hugging Face's library"
    )
    algorithm: ProposerAlgorithm = Field(
        "auto", description="what the proposers follow with: auto or line"
    )
    requests: int = Field(256, ge=1, le=100_000, description="requests, the texts in turn")
    concurrency: int = Field(64, ge=1, le=1024, description="requests at a time")
    replicas: int = Field(1, ge=1, le=16, description="proposers, each with a memory of its own")
    affinity: bool = Field(True, description="whether a request stays with one: true or false")
    pass_ms: float = Field(20.0, gt=0, description="how long a pass takes without its tokens")
    token_us: int = Field(5, ge=0, description="how much longer each token makes it")
    looks_up: bool = Field(
        True, description="whether the worker looks drafts up in predictions: true or false"
    )
    depth: int = Field(2, ge=1, le=3, description="plans in flight")
    wait_ms: float = Field(10.0, ge=0, description="longest wait for a window between two passes")
    wait: Literal["paying", "always"] = Field("paying", description="when to wait that long")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text came out wrong."""
    return run_command(WindowsSettings, arguments, measure, describe)


def _generate_pairs(tokenizer: Tokenizer) -> Iterator[Pair]:
    """Generates texts with a function renamed, one left out, one moved and one put in."""
    for number in range(NUM_TEXTS):
        before = functions(NUM_FUNCTIONS, number)
        name = before[number % NUM_FUNCTIONS].split("(")[0].removeprefix("def ")
        after = [text.replace(name, f"{name}_again") for text in before]
        del after[(5 * number + 3) % len(after)]
        after.insert(number % len(after), after.pop())
        after.insert((7 * number) % len(after), functions(1, NUM_TEXTS + number)[0])
        yield make_pair(tokenizer, "\n\n".join(before), "\n\n".join(after))


def measure(settings: WindowsSettings) -> dict[str, Any]:
    """Runs all requests and returns the report."""
    tokenizer = load_tokenizer(settings.tokenizer)
    if settings.pairs:
        pairs = load_pairs(settings.pairs, tokenizer, 0)
    else:
        pairs = list(_generate_pairs(tokenizer))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        truths = directory / "truths.jsonl"
        truths.write_text("\n".join(json.dumps(list(pair.truth)) for pair in pairs))
        worker = stack.enter_context(
            simulated_worker(
                step_us=round(1000 * settings.pass_ms),
                token_us=settings.token_us,
                looks_up=str(settings.looks_up),
                truths=str(truths),
                max_num_seqs=settings.concurrency,
                max_num_batched_tokens=128 * settings.concurrency,
            )
        )
        scheduler, metrics_port = stack.enter_context(_services(settings, directory, worker))
        load = WindowLoad(scheduler, pairs, settings.requests, settings.concurrency)
        processes = [*find_replicas("optimist_proposer"), *find_replicas("optimist_scheduler")]
        before = [read_cpu_seconds(pid) for pid in processes]
        totals = asyncio.run(load.run())
        after = [read_cpu_seconds(pid) for pid in processes]
        figures = read_metrics(metrics_port)
    *proposers, scheduling = map(sub, after, before)
    windows = sum(each for name, each in figures.items() if name.startswith(_WINDOWS))
    costs = {
        "windows": int(windows),
        "proposer_us_per_window": round(1e6 * sum(proposers) / max(windows, 1), 2),
        "scheduler_us_per_row": round(1e6 * scheduling / max(totals.num_passes, 1), 2),
    }
    return _report(settings, totals, _read_buckets(figures)) | costs


@contextmanager
def _services(settings: WindowsSettings, directory: Path, worker: str) -> Iterator[tuple[str, int]]:
    """Runs proposers and scheduler; yields the scheduler's address and its port of metrics."""
    model = directory / "model"
    model.mkdir()
    shutil.copyfile(settings.tokenizer, model / "tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    metrics_port, scheduler_port, *ports = free_ports(2 + settings.replicas)
    specs = [
        _spec("proposer", port, "--model", str(model), "--algorithm", settings.algorithm)
        for port in ports
    ]
    specs.append(
        _spec(
            "scheduler",
            scheduler_port,
            *("--workers", worker),
            *("--proposers", ",".join(f"127.0.0.1:{port}" for port in ports)),
            *("--proposer-affinity", str(settings.affinity).lower()),
            *("--proposer-wait-ms", str(settings.wait_ms)),
            *("--proposer-wait", settings.wait),
            *("--max-plans-in-flight", str(settings.depth)),
            *("--max-num-waiting", str(settings.concurrency)),
            *("--metrics-port", str(metrics_port)),
        )
    )
    with running(specs):
        yield f"127.0.0.1:{scheduler_port}", metrics_port


def _spec(name: str, port: int, *flags: str) -> ServiceSpec:
    arguments = ["--port", str(port), "--log-level", "warning", *flags]
    return ServiceSpec(name, arguments, lambda: is_serving(f"127.0.0.1:{port}", timeout=1.0))


def _read_buckets(figures: Mapping[str, float]) -> list[tuple[float, float]]:
    """Returns the histogram of waits: upper bounds in seconds, and how many were not longer."""
    return [
        (float(name.split('le="')[1].split('"')[0]), count)
        for name, count in figures.items()
        if name.startswith(_HISTOGRAM)
    ]


def _find_quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """Returns a quantile in milliseconds, interpolated inside its bucket; 0 without a wait."""
    wanted = share * buckets[-1][1] if buckets else 0.0
    low = below = 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            high = min(bound, 2 * low) if bound == float("inf") else bound
            return 1000 * (low + (high - low) * (wanted - below) / (count - below))
        low, below = bound, count
    return 0.0


def _report(
    settings: WindowsSettings, totals: Totals, buckets: list[tuple[float, float]]
) -> dict[str, Any]:
    stats = totals.stats
    steps = max(stats.num_plans, 1)
    return {
        "algorithm": settings.algorithm,
        "concurrency": settings.concurrency,
        "requests": settings.requests,
        "replicas": settings.replicas,
        "affinity": settings.affinity,
        "pass_ms": settings.pass_ms,
        "token_us": settings.token_us,
        "depth": settings.depth,
        "wait": settings.wait,
        "all_right": totals.all_right,
        "output_tokens": totals.num_tokens,
        "passes": totals.num_passes,
        "tokens_per_pass": round(totals.num_tokens / max(totals.num_passes, 1), 4),
        "accepted_prediction_tokens": totals.num_accepted,
        "rejected_prediction_tokens": totals.num_rejected,
        "seconds": round(totals.seconds, 3),
        "tokens_per_second": round(totals.num_tokens / totals.seconds, 1),
        "steps": stats.num_plans,
        "steps_waited": stats.num_window_waits,
        "steps_waited_share": round(stats.num_window_waits / steps, 4),
        "steps_idle_share": round(stats.num_idle_window_waits / steps, 4),
        "waits_in_vain_share": round(
            stats.num_late_window_waits / max(stats.num_window_waits, 1), 4
        ),
        "wait_ms": {
            "p50": round(_find_quantile(buckets, 0.5), 3),
            "p99": round(_find_quantile(buckets, 0.99), 3),
            "mean": round(stats.window_wait_us / 1000 / max(stats.num_window_waits, 1), 3),
        },
        "wait_time_share": round(stats.window_wait_us / 1e6 / totals.seconds, 5),
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table."""
    names = (
        *("tokens_per_second", "tokens_per_pass", "steps", "steps_waited_share"),
        *("steps_idle_share", "waits_in_vain_share", "proposer_us_per_window"),
    )
    waits = report["wait_ms"]
    return format_table(
        (*names, "p50 ms", "p99 ms", "right"),
        [(*(report[name] for name in names), waits["p50"], waits["p99"], report["all_right"])],
    )
