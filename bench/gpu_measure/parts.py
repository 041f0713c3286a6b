"""Where the time of a step goes on a GPU: its kernels by their kind, by PyTorch's profiler."""

from collections import Counter

from torch.profiler import ProfilerActivity, profile

from gpu_measure.bench import Bench
from gpu_measure.models import load, write_text
from gpu_measure.slots import Loaded, NotPossibleError, run_steps, warm_up

_KINDS = {
    "products": ("nvjet", "gemm", "gemv", "cutlass", "cublas", "splitK"),
    "attention": ("attend_parts", "combine_parts", "write_token"),
    "other kernels of ours": ("norm_token", "rotate_head", "gate_tile", "choose_", "find_cuts"),
}
"""What the names of kernels contain."""
_SMALL = "small operations"
_STEPS = 5


def measure_parts(bench: Bench) -> None:
    """Profiles steps of one row without drafts, and of many rows with some."""
    if not bench.is_cuda:
        raise NotPossibleError("needs CUDA")
    for shape in bench.shapes:
        loaded = load(bench, shape)
        write_text(loaded, is_firm=True)
        for batch, drafts in ((1, 0), (64, 0), (64, 7)):
            what = f"{shape.name} batch {batch} ctx 1024 drafts {drafts}"
            if bench.left < 5:
                bench.leave_out(what, "no time")
                continue
            add_parts(bench, loaded, what, batch, drafts)


def add_parts(bench: Bench, loaded: Loaded, what: str, batch: int, drafts: int) -> None:
    """Adds a row for each kind of kernel, and one for what is between kernels."""
    runner = loaded.runner
    plan = warm_up(loaded, runner, batch, 1024, drafts)
    step_us = bench.seconds(lambda: run_steps(runner, plan, _STEPS)) * 1e6 / _STEPS
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run_steps(runner, plan, _STEPS)
        bench.wait()
    times, numbers = Counter[str](), Counter[str]()
    for kernel in profiled.key_averages():
        kind = kind_of(kernel.key)
        times[kind] += kernel.self_device_time_total / _STEPS
        numbers[kind] += kernel.count / _STEPS
    for kind in (*_KINDS, _SMALL):
        note = f"{numbers[kind]:.0f} kernels"
        bench.add(f"{what}: {kind}", times[kind], "us/step", note=note)
    bench.add(f"{what}: between kernels", step_us - times.total(), "us/step")


def kind_of(name: str) -> str:
    """Returns the kind of a kernel."""
    for kind, parts in _KINDS.items():
        if any(part in name for part in parts):
            return kind
    return _SMALL
