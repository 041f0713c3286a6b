"""For how long the device waits between steps."""

import time
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from gpu_measure.bench import Bench, event
from gpu_measure.models import load, write_text
from gpu_measure.slots import (
    WARM_UP_STEPS,
    Loaded,
    NotPossibleError,
    admit,
    next_plan,
    run_steps,
)
from optimist_worker.core.plan import Plan


def measure_overlap(bench: Bench) -> None:
    """Finds for how long the device waits between steps, and what the host does meanwhile."""
    small, large = bench.shapes
    for shape, batch in ((small, 1), (large, 1), (large, 2 if bench.is_tiny else 64)):
        loaded = load(bench, shape)
        write_text(loaded, is_firm=True)
        for depth in (1, 2):
            try:
                add_overlap(bench, loaded, batch, depth)
            except NotPossibleError as error:
                bench.leave_out(f"{shape.name} batch {batch}", str(error))


def add_overlap(bench: Bench, loaded: Loaded, batch: int, depth: int) -> None:
    """Adds the rows of one number of plans launched ahead."""
    number, runner = 10 if bench.is_tiny else 100, loaded.runner
    admit(loaded, runner, batch, 64 if bench.is_tiny else 1024)
    plan = next_plan(loaded, batch, 0)
    run_steps(runner, plan, WARM_UP_STEPS, depth=1)
    spans: list[tuple[Any, Any]] = []
    launches: list[float] = []
    start_step, launch_plan = runner.engine.launch, runner.launch

    def start(*arguments: Any) -> Any:
        if not bench.is_cuda:
            return start_step(*arguments)
        span = event(), event()
        span[0].record()
        step = start_step(*arguments)
        span[1].record()
        spans.append(span)
        return step

    def launch(plan: Plan) -> Any:
        begin = time.perf_counter()
        launched = launch_plan(plan)
        launches.append(time.perf_counter() - begin)
        return launched

    with (
        patch.object(runner.engine, "launch", start),
        patch.object(runner, "launch", launch),
    ):
        seconds = bench.seconds(lambda: run_steps(runner, plan, number, depth))
    what = f"{loaded.shape.name} batch {batch}, {depth} launched"
    bench.add(f"{what}: step", seconds / number * 1e3, "ms/step")
    if not bench.is_cuda:
        bench.leave_out(what, "idle time needs CUDA events")
        return
    bench.add(f"{what}: host's launch", sorted(launches)[number // 2] * 1e3, "ms/step")
    gaps = sum(max(0.0, a[1].elapsed_time(b[0])) for a, b in pairwise(spans))
    total = spans[0][0].elapsed_time(spans[-1][1])
    bench.add(f"{what}: device idle", 100 * gaps / total, "%", note=f"{gaps / number:.3f} ms/step")
