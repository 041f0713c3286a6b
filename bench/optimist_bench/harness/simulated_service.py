"""The simulated worker as a process with a gRPC port, whose steps take a given time."""

import asyncio
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
from prometheus_client import Counter
from pydantic import Field

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_bench.harness.simulated_worker import PlanError, SimulatedModel, SimulatedWorker
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_cli.serve.ports import free_ports
from optimist_common.columns import INT32_BYTES, from_bytes, to_bytes
from optimist_common.errors import run_or_explain
from optimist_common.network.server import GrpcServer, run_service
from optimist_common.observing.metrics import serve_metrics
from optimist_common.settings import ServiceSettings, load_settings


class Emissions:
    """Takes note of results as they are sent; requests are known by their seeds."""

    def __init__(self) -> None:
        self._seeds: dict[int, int] = {}
        self._lines: list[tuple[int, list[int], list[int]]] = []

    def note(
        self,
        plan: worker_pb2.ExecuteRequest | None,
        response: worker_pb2.ExecuteResponse,
        now_ns: int,
    ) -> None:
        """Takes note of a result, and of the plan that it is the first one of."""
        for admission in plan.admissions if plan is not None else ():
            self._seeds[admission.slot] = admission.sampling.seed
        seeds = [self._seeds[slot] for slot in from_bytes(response.slots).tolist()]
        self._lines.append((now_ns, seeds, from_bytes(response.num_emitted_tokens).tolist()))

    def write(self, path: Path) -> None:
        """Writes a JSON line for each result: when, seeds of its rows, tokens of its rows."""
        path.write_text("".join(json.dumps(line) + "\n" for line in self._lines), encoding="utf-8")


def read_emissions(path: Path) -> dict[int, list[int]]:
    """Returns when each token of each request was sent, by seed, in `perf_counter_ns`."""
    times: dict[int, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        now_ns, seeds, counts = json.loads(line)
        for seed, count in zip(seeds, counts, strict=True):
            times.setdefault(seed, []).extend([now_ns] * count)
    return times


MAX_WAITING_PLANS = 8
# The last part of a step is waited for without sleeping, which would take longer than asked.
SPIN_NS = 150_000
IDLE_SECONDS = Counter("optimist_simulated_idle_seconds", "Time without a plan")

_Context = grpc.aio.ServicerContext[Any, Any]
# None ends the work, and the answers.
_Plans = queue.SimpleQueue["worker_pb2.ExecuteRequest | None"]
_Send = Callable[["worker_pb2.ExecuteResponse | PlanError | None"], object]


class SimulatedSettings(ServiceSettings):
    """Runs a worker without a model until its standard input ends."""

    section: ClassVar[str] = "simulated"

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port of the gRPC service")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of /metrics; 0: none")
    step_us: int = Field(1000, ge=0, description="how long a step takes, in microseconds")
    token_us: int = Field(0, ge=0, description="how much longer each token makes a step")
    free_tokens: int = Field(0, ge=0, description="tokens of a step that make it no longer")
    row_us: int = Field(0, ge=0, description="how much longer each request makes a step")
    truths: str = Field(
        "",
        description="JSON lines with the tokens of what is said, chosen by the seed; empty: what "
        "is expected",
    )
    looks_up: bool = Field(
        False, description="whether rows that left their windows draft from their predictions"
    )
    emissions: str = Field("", description="file that says at the end what was sent when")
    stall_every: int = Field(0, ge=0, description="number of steps between stalls; 0: none")
    stall_us: int = Field(0, ge=0, description="how much longer such a step takes")
    max_num_seqs: int = Field(64, ge=1, description="most requests that run at once")
    max_num_batched_tokens: int = Field(2048, ge=1, description="most tokens of a pass")


def make_model(settings: SimulatedSettings) -> SimulatedModel:
    """Returns the model, with room for the longest sequence in each slot: nothing is preempted."""
    model = SimulatedModel(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        looks_up=settings.looks_up,
    )
    num_blocks = settings.max_num_seqs * model.max_model_len // model.block_size
    return replace(model, num_blocks=num_blocks)


def find_step_us(settings: SimulatedSettings, num_tokens: int, num_rows: int) -> int:
    """Returns how long a step takes, in microseconds."""
    num_paid = max(num_tokens - settings.free_tokens, 0)
    return settings.step_us + settings.token_us * num_paid + settings.row_us * num_rows


def describe_model(
    model: SimulatedModel, settings: SimulatedSettings
) -> worker_pb2.DescribeResponse:
    """Returns the model's description, with what passes take if that grows with their tokens."""
    description = model.describe()
    if settings.token_us:
        sizes = [1 << power for power in range(model.max_num_batched_tokens.bit_length())]
        times = [find_step_us(settings, size, num_rows=1) for size in sizes]
        description.cost_num_tokens, description.cost_us = to_bytes(sizes), to_bytes(times)
    return description


class SimulatedServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves Describe and Execute; steps run on a thread of their own, as a real worker's do."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self._settings, self._model = settings, make_model(settings)
        self._truths: list[list[int]] = []
        if settings.truths:
            lines = Path(settings.truths).read_text(encoding="utf-8").splitlines()
            self._truths = [json.loads(line) for line in lines]
        self._emissions = Emissions() if settings.emissions else None

    def write_emissions(self) -> None:
        """Writes what was sent when, if that is asked for."""
        if self._emissions is not None:
            self._emissions.write(Path(self._settings.emissions))

    def _make_worker(self) -> SimulatedWorker | TruthWorker:
        if self._truths:
            return TruthWorker(self._truths, self._model.describe())
        return SimulatedWorker(self._model)

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: _Context
    ) -> worker_pb2.DescribeResponse:
        """Describes the model that there is not."""
        return describe_model(self._model, self._settings)

    async def Execute(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: _Context
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Runs plans in turn, from an empty state."""
        plans: _Plans = queue.SimpleQueue()
        outbox: asyncio.Queue[worker_pb2.ExecuteResponse | PlanError | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(item: worker_pb2.ExecuteResponse | PlanError | None) -> None:
            loop.call_soon_threadsafe(outbox.put_nowait, item)

        threading.Thread(target=self._work, args=(plans, send), daemon=True).start()
        reader = asyncio.create_task(_read(request_iterator, plans, send))
        try:
            while isinstance(item := await outbox.get(), worker_pb2.ExecuteResponse):
                yield item
            if item is not None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(item))
        finally:
            reader.cancel()
            plans.put(None)

    def _work(self, plans: _Plans, send: _Send) -> None:
        worker, settings, num_steps = self._make_worker(), self._settings, 0
        while True:
            waited_from = time.perf_counter_ns()
            plan = plans.get()
            if plan is None:
                send(None)
                return
            started = time.perf_counter_ns()
            try:
                response = worker.execute(plan)
            except PlanError as error:
                send(error)
                return
            num_steps += 1
            stalls = settings.stall_every and num_steps % settings.stall_every == 0
            num_rows = len(response.slots) // INT32_BYTES
            duration = find_step_us(settings, response.num_tokens, num_rows)
            duration += settings.stall_us if stalls else 0
            wait_until(started + duration * 1000)
            response.idle_ns = started - waited_from
            IDLE_SECONDS.inc(response.idle_ns / 1e9)
            response.step_ns = time.perf_counter_ns() - started
            if self._emissions is not None:
                self._emissions.note(plan, response, time.perf_counter_ns())
            send(response)


async def _read(
    request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], plans: _Plans, send: _Send
) -> None:
    async for request in request_iterator:
        if plans.qsize() >= MAX_WAITING_PLANS:
            send(PlanError(f"{MAX_WAITING_PLANS} plans wait already"))
            return
        plans.put(request)
    plans.put(None)


def wait_until(end_ns: int) -> None:
    """Sleeps until a time of `perf_counter_ns`, and passes the last part without sleeping."""
    while (left := end_ns - time.perf_counter_ns()) > 0:
        time.sleep(max(left - SPIN_NS, 0) / 1e9)


@contextmanager
def simulated_worker(**settings: int | str) -> Iterator[str]:
    """Runs a simulated worker with some settings in a process of its own; yields its address."""
    (port,) = free_ports(1)
    values = {"port": port, **settings}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    command = [sys.executable, "-m", "optimist_bench.harness.simulated_service", *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # noqa: S603
        # Leaving ends its standard input, and with it the process.
        yield f"127.0.0.1:{port}"
        if process.poll() is not None:
            raise RuntimeError(f"the simulated worker ended with code {process.returncode}")


async def _serve(settings: SimulatedSettings) -> None:
    serve_metrics("simulated", settings.host, settings.metrics_port)
    server = GrpcServer(settings.host, settings.port)
    servicer = SimulatedServicer(settings)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.end_calls(0)
    servicer.write_emissions()


def main(arguments: list[str] | None = None) -> int:
    """Serves until standard input ends; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments

    def start() -> None:
        settings = load_settings(SimulatedSettings, given)
        run_service(lambda: _serve(settings))

    return run_or_explain("the simulated worker", start)


if __name__ == "__main__":
    sys.exit(main())
