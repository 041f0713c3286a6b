"""The real services, and the load that is put on them."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import sub
from pathlib import Path
from time import perf_counter
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2
from optimist_bench.harness.pair import Pair
from optimist_bench.harness.process_time import find_replicas, read_cpu_seconds
from optimist_bench.harness.services import SchedulerStream, open_stream, read_metrics, running
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_bench.windows.report import Costs, Totals, make_report
from optimist_bench.windows.requests import Requests
from optimist_bench.windows.settings import WindowsSettings
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.process import ServiceSpec
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.health import is_serving


class WindowLoad:
    """One gateway's stream to the scheduler."""

    def __init__(
        self,
        scheduler: str,
        requests: Requests,
        concurrency: int,
        read_costs: Callable[[], Costs],
    ) -> None:
        """Sets up what sends requests.

        Args:
            scheduler: Its host:port.
            requests: What to send.
            concurrency: How many run at a time.
            read_costs: Returns what the services have taken so far.
        """
        self._address, self._requests, self._concurrency = scheduler, requests, concurrency
        self._read_costs = read_costs
        self._started = 0.0
        self._is_draining = False
        """Whether a request has ended that no other one followed."""

    async def run(self) -> Totals:
        """Runs all requests.

        Raises:
            RuntimeError: The scheduler refuses a command, or ends the stream.
        """
        requests = self._requests
        async with open_stream(self._address) as stream:
            self._started = perf_counter()
            for _ in range(self._concurrency):
                if requests.are_left:
                    await self._add(stream)
            while requests.run:
                await self._read(stream)
            seconds = perf_counter() - self._started
            stats = await stream.read_stats()
            requests.totals.progress = requests.measure(seconds, stats, self._read_costs())
        return requests.totals

    async def _add(self, stream: SchedulerStream) -> None:
        handle, number, pair = self._requests.begin()
        add = scheduler_pb2.Add(
            handle=handle,
            request_id=f"windows-{handle}",
            prompt_token_ids=to_bytes([number]),
            predicted_token_ids=to_bytes(pair.predicted),
            max_tokens=len(pair.truth),
        )
        await stream.add(add)

    async def _read(self, stream: SchedulerStream) -> None:
        response, requests = await stream.read(), self._requests
        columns = response.handles, response.num_tokens, response.token_ids
        requests.take(*(from_bytes(column).tolist() for column in columns))
        for reply in response.replies:
            if reply.stats.num_plans:
                seconds = perf_counter() - self._started
                requests.totals.full = requests.measure(seconds, reply.stats, self._read_costs())
        for finished in response.finished:
            requests.end(finished.handle, finished)
            if requests.are_left:
                await self._add(stream)
            elif not self._is_draining:
                self._is_draining = True
                await stream.ask_stats()


_HISTOGRAM = "optimist_scheduler_proposer_wait_seconds_bucket"
_WINDOWS = "optimist_scheduler_windows_received_total"


def run_services(settings: WindowsSettings, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Runs all requests on services of their own; returns the report."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        truths = directory / "truths.jsonl"
        truths.write_text("\n".join(json.dumps(list(pair.truth)) for pair in pairs))
        worker = stack.enter_context(
            simulated_worker(**settings.describe_worker(), truths=str(truths))
        )
        scheduler, metrics_port = stack.enter_context(_services(settings, directory, worker))
        requests = Requests(pairs, settings.requests)
        read_costs = _CostReader(metrics_port).read
        load = WindowLoad(scheduler, requests, settings.concurrency, read_costs)
        totals = asyncio.run(load.run())
        buckets = _read_buckets(read_metrics(metrics_port))
    quantiles = [_find_quantile(buckets, share) for share in (0.5, 0.99)]
    return make_report(settings, totals, *quantiles)


class _CostReader:
    """What the services have taken since now."""

    def __init__(self, metrics_port: int) -> None:
        self._metrics_port = metrics_port
        self._processes = [
            *find_replicas("optimist_proposer"),
            *find_replicas("optimist_scheduler"),
        ]
        self._before = self._read_seconds()

    def _read_seconds(self) -> list[float]:
        return [read_cpu_seconds(pid) for pid in self._processes]

    def read(self) -> Costs:
        *proposers, scheduling = map(sub, self._read_seconds(), self._before)
        figures = read_metrics(self._metrics_port)
        windows = sum(each for name, each in figures.items() if name.startswith(_WINDOWS))
        return Costs(int(windows), sum(proposers), scheduling)


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
