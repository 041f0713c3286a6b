"""Steps through scheduler and worker as processes, over the loopback."""

import contextlib
import gc
import queue
from collections.abc import Iterator

import grpc
import numpy as np
import torch

from gpu_measure.bench import Bench
from gpu_measure.shape import Shape
from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_bench.harness.services import read_metrics, running
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.process import ServiceSpec
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.health import is_serving


def measure_served(bench: Bench) -> None:
    """Generates through scheduler and worker, each a process, with this one as their gateway."""
    # The worker's process needs the memory.
    bench.loaded.clear()
    gc.collect()
    if bench.is_cuda:
        torch.cuda.empty_cache()
    for shape, batches in zip(bench.shapes, ((1,), (1, 64)), strict=True):
        if bench.left < 15:
            bench.leave_out(shape.name, "no time")
            continue
        with running_services(bench, shape) as (address, metrics_port):
            for batch in batches:
                add_served(bench, shape, batch, address, metrics_port)


@contextlib.contextmanager
def running_services(bench: Bench, shape: Shape) -> Iterator[tuple[str, int]]:
    """Starts a worker and a scheduler; yields the scheduler's address and the worker's metrics."""
    ports = free_ports(3)
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
        ServiceSpec("worker", words, lambda: is_serving(worker, 1.0)),
        ServiceSpec(
            "scheduler",
            ["--port", str(ports[1]), "--workers", worker, "--proposers", ""],
            lambda: is_serving(scheduler, 1.0),
        ),
    ]
    with running(specs):
        yield scheduler, ports[2]


def add_served(bench: Bench, shape: Shape, batch: int, address: str, metrics_port: int) -> None:
    """Adds a step's time and the worker's idle time while all requests decode."""
    ctx, number = (20, 30) if bench.is_tiny else (1024, 600)
    rng = np.random.default_rng(batch)
    prompts = [rng.integers(0, shape.vocab_size, ctx).tolist() for _ in range(batch)]
    marks: list[dict[str, float]] = []
    for least in generate_served(address, prompts, number):
        # From here to there nobody has a prompt to compute, and nobody has ended.
        wanted = (number // 5, number * 4 // 5)[min(1, len(marks))]
        if least >= wanted and len(marks) < 2:
            marks.append(read_metrics(metrics_port))
    before, after = marks
    names = ("step_seconds_count", "step_seconds_sum", "idle_seconds_total")
    steps, busy, idle = (
        after[f"optimist_worker_{name}"] - before[f"optimist_worker_{name}"] for name in names
    )
    what = f"{shape.name} batch {batch} ctx {ctx}, services"
    mean = ctx + number / 2
    floor = shape.floor_seconds(batch, 1, mean, bench.ceilings, bench.dtype.itemsize)
    seconds = (busy + idle) / steps
    bench.add(f"{what}: step", seconds * 1e3, "ms/step", floor=floor * 1e3)
    share = 100 * idle / (busy + idle)
    bench.add(f"{what}: worker idle", share, "%", note="of the worker's thread, waiting for a plan")


def generate_served(address: str, prompts: list[list[int]], number: int) -> Iterator[int]:
    """Runs requests on a scheduler; yields how many tokens the slowest has after each answer."""
    commands: queue.SimpleQueue[scheduler_pb2.ConnectRequest | None] = queue.SimpleQueue()
    for handle, prompt in enumerate(prompts):
        add = scheduler_pb2.Add(
            handle=handle,
            request_id=f"gpu-{len(prompts)}-{handle}",
            prompt_token_ids=to_bytes(prompt),
            max_tokens=number,
        )
        commands.put(scheduler_pb2.ConnectRequest(command_id=handle, add=add))
    counts, num_finished = [0] * len(prompts), 0
    with grpc.insecure_channel(address) as channel:
        for answer in scheduler_pb2_grpc.SchedulerServiceStub(channel).Connect(
            iter(commands.get, None)
        ):
            handles = from_bytes(answer.handles).tolist()
            for handle, count in zip(handles, from_bytes(answer.num_tokens), strict=True):
                counts[handle] += int(count)
            for finished in answer.finished:
                if finished.message:
                    raise RuntimeError(f"a request failed: {finished.message}")
                num_finished += 1
            yield min(counts)
            if num_finished == len(prompts):
                break
    commands.put(None)
