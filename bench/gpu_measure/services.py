"""Steps through scheduler and worker as processes, over the loopback."""

import contextlib
import gc
import importlib
import queue
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_measure.bench import Bench
from gpu_measure.shape import Shape
from gpu_measure.slots import NotPossibleError


def measure_services(bench: Bench) -> None:
    """Generates through scheduler and worker, each a process, with this one as their gateway."""
    needed = ("google.protobuf", "grpc", "grpc_health", "prometheus_client", "pydantic")
    for name in needed:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise NotPossibleError(f"{error}: the services need it") from None
    # The worker's process needs the memory.
    bench.loaded.clear()
    gc.collect()
    if bench.is_cuda:
        torch.cuda.empty_cache()
    for shape, batches in zip(bench.shapes, ((1,), (1, 64)), strict=True):
        if bench.left < 15:
            bench.leave_out(shape.name, "no time")
            continue
        with running_services(bench, shape) as (address, metrics):
            for batch in batches:
                add_served(bench, shape, batch, address, metrics)


@contextlib.contextmanager
def running_services(bench: Bench, shape: Shape) -> Iterator[tuple[str, str]]:
    """Starts a worker and a scheduler; yields the scheduler's address and the worker's metrics."""
    services: Any = importlib.import_module("optimist_bench.harness.services")
    spec: Any = importlib.import_module("optimist_cli.serve.process").ServiceSpec
    ports = importlib.import_module("optimist_cli.serve.ports").free_ports(3)
    is_serving: Any = importlib.import_module("optimist_common.network.health").is_serving
    worker, scheduler = (f"127.0.0.1:{port}" for port in ports[:2])
    flags = {
        "model": shape.write(bench.directory),
        "dummy-weights": "true",
        "device": str(bench.device),
        "dtype": str(bench.dtype).removeprefix("torch."),
        "port": str(ports[0]),
        "metrics-port": str(ports[2]),
        "log-level": "warning",
        "max-num-seqs": "64",
        "max-model-len": "2048",
        # A text without sense repeats itself: a lookup would draft it.
        "drafter": "none",
        "kv-memory-mib": "64",
    }
    if not bench.is_tiny:
        mib = 64 * 2048 * shape.num_kept * bench.dtype.itemsize // 2**20
        flags |= {"max-num-batched-tokens": "4096", "kv-memory-mib": str(mib)}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
    specs = [
        spec("worker", words, lambda: is_serving(worker, 1.0)),
        spec(
            "scheduler",
            ["--port", str(ports[1]), "--workers", worker, "--proposers", ""],
            lambda: is_serving(scheduler, 1.0),
        ),
    ]
    with services.running(specs):
        yield scheduler, f"http://127.0.0.1:{ports[2]}/metrics"


def add_served(bench: Bench, shape: Shape, batch: int, address: str, metrics: str) -> None:
    """Adds a step's time and the worker's idle time while all requests decode."""
    ctx, number = (20, 30) if bench.is_tiny else (1024, 600)
    rng = np.random.default_rng(batch)
    prompts = [rng.integers(0, shape.vocab_size, ctx).tolist() for _ in range(batch)]
    marks: list[dict[str, float]] = []
    for least in generate_served(address, prompts, number):
        # From here to there nobody has a prompt to compute, and nobody has ended.
        wanted = (number // 5, number * 4 // 5)[min(1, len(marks))]
        if least >= wanted and len(marks) < 2:
            marks.append(scrape(metrics))
    before, after = marks
    steps, busy, idle = (after[name] - before[name] for name in ("count", "sum", "total"))
    what = f"{shape.name} batch {batch} ctx {ctx}, services"
    mean = ctx + number / 2
    floor = shape.floor_seconds(batch, 1, mean, bench.ceilings, bench.dtype.itemsize)
    seconds = (busy + idle) / steps
    bench.add(f"{what}: step", seconds * 1e3, "ms/step", floor=floor * 1e3)
    share = 100 * idle / (busy + idle)
    bench.add(f"{what}: worker idle", share, "%", note="of the worker's thread, waiting for a plan")
    bench.figures[f"idle {shape.name} {batch}"] = share
    bench.figures[f"served {shape.name} {batch}"] = seconds


def generate_served(address: str, prompts: list[list[int]], number: int) -> Iterator[int]:
    """Runs requests on a scheduler; yields how many tokens the slowest has after each answer."""
    grpc: Any = importlib.import_module("grpc")
    pb2: Any = importlib.import_module("optimist.scheduler.v1.scheduler_pb2")
    stubs: Any = importlib.import_module("optimist.scheduler.v1.scheduler_pb2_grpc")
    columns: Any = importlib.import_module("optimist_common.columns")
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for handle, prompt in enumerate(prompts):
        add = pb2.Add(
            handle=handle,
            request_id=f"gpu-{len(prompts)}-{handle}",
            prompt_token_ids=columns.to_bytes(prompt),
            max_tokens=number,
        )
        commands.put(pb2.ConnectRequest(command_id=handle, add=add))
    counts, num_finished = [0] * len(prompts), 0
    with grpc.insecure_channel(address) as channel:
        for answer in stubs.SchedulerServiceStub(channel).Connect(iter(commands.get, None)):
            handles = columns.from_bytes(answer.handles).tolist()
            for handle, count in zip(handles, columns.from_bytes(answer.num_tokens), strict=True):
                counts[handle] += int(count)
            for finished in answer.finished:
                if finished.message:
                    raise RuntimeError(f"a request failed: {finished.message}")
                num_finished += 1
            yield min(counts)
            if num_finished == len(prompts):
                break
    commands.put(None)


def scrape(url: str) -> dict[str, float]:
    """Returns number and seconds of the worker's steps, and seconds for which it was idle."""
    with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 (our own worker)
        text = response.read().decode()
    pattern = r"^optimist_worker_(?:step_seconds_(count|sum)|idle_seconds_(total)) (\S+)$"
    found = re.findall(pattern, text, re.MULTILINE)
    return {first or second: float(value) for first, second, value in found}
