"""The time of steps that verify right drafts, against the floor, and of the waits between steps."""

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from gpu_measure.bench import Bench, event
from gpu_measure.models import load, write_text
from gpu_measure.slots import WARM_UP_STEPS, Loaded, NotPossibleError, run_steps, warm_up
from optimist_worker.core.plan import MOST_WINDOW_NODES, Plan, StepResult


def grid_of(bench: Bench) -> list[tuple[int, int, int]]:
    """Returns contexts, batches and drafts."""
    if bench.is_tiny:
        return [(64, batch, drafts) for batch in (1, 4) for drafts in (0, 3)]
    widths = (0, 3, 7, 15, 31, 63, 127)
    grid = [(1024, batch, drafts) for batch in (1, 8, 64) for drafts in widths]
    return [
        *grid,
        *((4096, batch, drafts) for batch in (1, 8) for drafts in (0, 15)),
        (4096, 32, 0),
    ]


def measure_grid(bench: Bench) -> None:
    """Times steps that verify right drafts, with graphs; some of them without as well."""
    for shape, share in zip(bench.shapes, (0.45, 1.0), strict=True):
        end = time.monotonic() + bench.left * share
        loaded = load(bench, shape)
        write_text(loaded, is_firm=True)
        for ctx, batch, drafts in grid_of(bench):
            what = f"{shape.name} batch {batch} ctx {ctx} drafts {drafts}"
            if time.monotonic() > end - 2:
                bench.leave_out(what, "no time")
                continue
            try_step(bench, loaded, what, (ctx, batch, drafts), has_graphs=True)
            if drafts in (0, 15) and batch in (1, 64):
                try_step(bench, loaded, what, (ctx, batch, drafts), has_graphs=False)


def try_step(
    bench: Bench, loaded: Loaded, what: str, point: tuple[int, int, int], *, has_graphs: bool
) -> None:
    """Times a kind of step twice and adds its row, if it can run."""
    try:
        add_step(bench, loaded, what, point, has_graphs=has_graphs)
    except NotPossibleError as error:
        bench.leave_out(what, str(error))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0][:300]
        if "out of memory" in reason:
            bench.leave_out(what, reason)
        else:
            bench.fail(what, reason)


def add_step(
    bench: Bench, loaded: Loaded, what: str, point: tuple[int, int, int], *, has_graphs: bool
) -> None:
    """Times a kind of step twice and adds its row."""
    _, batch, drafts = point
    runs = [time_steps(bench, loaded, point, has_graphs=has_graphs) for _ in range(2)]
    mean = sum(run.seconds for run in runs) / 2
    floor = loaded.shape.floor_seconds(
        batch, 1 + drafts, runs[0].ctx, bench.ceilings, bench.dtype.itemsize
    )
    emitted = runs[0].num_emitted
    bench.add(
        what if has_graphs else f"{what}, graphs off",
        mean * 1e3,
        "ms/step",
        floor=floor * 1e3,
        noise=abs(runs[0].seconds - runs[1].seconds) / mean,
        note=f"{emitted / batch:.1f} tokens a row and step, {emitted / mean:.0f} tokens/s",
    )


@dataclass(frozen=True)
class Steps:
    """Some steps, on average."""

    seconds: float
    num_emitted: float
    """Tokens of all rows."""
    ctx: float
    """Tokens before each row's."""


def time_steps(
    bench: Bench, loaded: Loaded, point: tuple[int, int, int], *, has_graphs: bool
) -> Steps:
    """Times steps of one kind, two launched at a time."""
    ctx, batch, drafts = point
    runner = loaded.runner if has_graphs else loaded.plain
    plan = warm_up(loaded, runner, batch, ctx, drafts)
    number = max(2, min(20, MOST_WINDOW_NODES // (1 + drafts)))
    results: list[StepResult] = []
    seconds = bench.seconds(lambda: results.extend(run_steps(runner, plan, number)))
    return Steps(
        seconds / number,
        sum(len(result.token_ids) for result in results) / number,
        ctx + (WARM_UP_STEPS + number / 2) * (1 + drafts),
    )


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
    plan = warm_up(loaded, runner, batch, 64 if bench.is_tiny else 1024, 0)
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

    with patch.object(runner.engine, "launch", start), patch.object(runner, "launch", launch):
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
