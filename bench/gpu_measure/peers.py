"""transformers' ways to generate, with the same weights on the same device."""

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

from gpu_measure.bench import Bench
from gpu_measure.models import load, write_text
from gpu_measure.slots import (
    BLOCK_SIZE,
    Loaded,
    NotPossibleError,
    checked,
    next_plan,
    plan_rows,
    prompt_of,
    release_all,
    run_steps,
)
from optimist_common.sampling import SamplingParams
from optimist_worker.core.attention import paged_attention
from optimist_worker.core.plan import Admission, PlannedRow


def measure_peers(bench: Bench) -> None:
    """Times transformers' ways to generate, with the same weights on the same device."""
    small, large = (load(bench, shape) for shape in bench.shapes)
    for loaded in (small, large):
        write_text(loaded, is_firm=True)
        loaded.swap_layers()
        loaded.model.module.set_attn_implementation("sdpa")
        loaded.model.module.generation_config.pad_token_id = 0
    try:
        for loaded in (small, large):
            add_generate(bench, loaded)
        add_speculation(bench, large, small)
        add_continuous_batching(bench, large)
    finally:
        for loaded in (small, large):
            loaded.swap_layers()
            loaded.model.module.set_attn_implementation(paged_attention.NAME)


def add_generate(bench: Bench, loaded: Loaded) -> None:
    """Adds `generate` with a growing, a static and, if there is time, a compiled static cache."""
    ctx = 64 if bench.is_tiny else 1024
    static = {"cache_implementation": "static", "disable_compile": True}
    ways: list[tuple[str, int, dict[str, Any]]] = [
        ("generate", 1, {}),
        ("generate", 4 if bench.is_tiny else 64, {}),
        ("generate, static cache", 1, static),
    ]
    if bench.is_cuda and bench.left > 60:
        ways.append(("generate, compiled", 1, {"cache_implementation": "static"}))
    for way, batch, options in ways:
        what = f"transformers {way}: {loaded.shape.name} batch {batch} ctx {ctx} drafts 0"
        floor = loaded.shape.floor_seconds(batch, 1, ctx, bench.ceilings, bench.dtype.itemsize)
        run = partial(time_generate, bench, loaded, batch, ctx, options)
        attempt(bench, what, partial(add_time, bench, what, run, "ms/step", floor))


def add_speculation(bench: Bench, loaded: Loaded, assistant: Loaded) -> None:
    """Adds prompt lookup, with the answer in the prompt, and a small model that is always right."""
    name, ctx = loaded.shape.name, 64 if bench.is_tiny else 1024
    ways: list[tuple[str, dict[str, Any]]] = [
        ("prompt lookup of 10", {"prompt_lookup_num_tokens": 10}),
        (f"assisted by {assistant.shape.name}", {"assistant_model": assistant.model.module}),
    ]
    for way, options in ways:
        what = f"transformers {way}: {name} batch 1 ctx {ctx}, right drafts"
        run = partial(time_generate, bench, loaded, 1, ctx, options, repeats_answer=True)
        attempt(bench, what, partial(add_time, bench, what, run, "ms/token"))


def add_time(
    bench: Bench, what: str, run: Callable[[], float], unit: str, floor: float | None = None
) -> None:
    """Adds what a function has timed, in seconds."""
    bench.add(what, run() * 1e3, unit, floor=None if floor is None else floor * 1e3)


def attempt(bench: Bench, what: str, function: Callable[[], Any]) -> None:
    """Calls a function for at most what the section has left, and notes why it could not run."""
    if bench.left < 2:
        bench.leave_out(what, "no time")
        return

    def ring(*_: Any) -> None:
        raise NotPossibleError("no time")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, bench.left)
    try:
        function()
    except Exception as error:
        bench.leave_out(what, f"{type(error).__name__}: {error}".partition("\n")[0][:200])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def time_generate(
    bench: Bench,
    loaded: Loaded,
    batch: int,
    ctx: int,
    options: dict[str, Any],
    *,
    repeats_answer: bool = False,
) -> float:
    """Returns seconds per token of each row, without those of the prompt."""
    number = 8 if bench.is_tiny else 48
    prompts = [prompt_of(loaded, slot, ctx) for slot in range(batch)]
    if repeats_answer:
        for prompt in prompts:
            answer = loaded.follow(prompt[-1], number + 10)
            prompt[: len(answer) + 1] = [prompt[-1], *answer]
    inputs = torch.tensor(prompts, device=bench.device)
    module = loaded.model.module

    def run(tokens: int) -> None:
        module.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=tokens,
            **options,
        )

    run(1 + number)
    return (bench.seconds(lambda: run(1 + number)) - bench.seconds(lambda: run(1))) / number


def add_continuous_batching(bench: Bench, loaded: Loaded) -> None:
    """Adds transformers' continuous batching, and ours with the same prompts, both from scratch."""
    batch, ctx, number = (4, 40, 6) if bench.is_tiny else (32, 256, 48)
    prompts = [prompt_of(loaded, 100 + slot, ctx) for slot in range(batch)]
    name = f"{loaded.shape.name} batch {batch}, prompts of {ctx}, {number} tokens each"

    def ours() -> None:
        release_all(loaded)
        admissions, rows = [], []
        for slot, prompt in enumerate(prompts):
            admissions.append(Admission(slot, f"r{slot}", prompt, ctx, SamplingParams()))
            blocks = [slot + n * batch for n in range(-(-(ctx + number) // BLOCK_SIZE))]
            rows.append(PlannedRow(slot, ctx, 0, blocks))
        checked(loaded.runner.execute(plan_rows(loaded, rows, admissions=admissions)))
        run_steps(loaded.runner, next_plan(loaded, batch, 0), number - 1)

    def theirs() -> None:
        # An end token that never comes, so that all answers are equally long.
        make: Any = transformers.GenerationConfig
        config = make(do_sample=False, max_new_tokens=number, eos_token_id=-1, pad_token_id=0)
        answers = loaded.model.module.generate_batch(inputs=prompts, generation_config=config)
        if len(answers) != batch:
            raise NotPossibleError(f"{len(answers)} of {batch} requests were answered")

    def add(what: str, run: Callable[[], None]) -> None:
        run()
        bench.add(what, batch * number / bench.seconds(run), "tokens/s")

    module = loaded.model.module
    module.set_attn_implementation(paged_attention.NAME)
    what = f"ours: {name}"
    attempt(bench, what, partial(add, what, ours))
    module.set_attn_implementation("sdpa")
    what = f"transformers continuous batching (SDPA): {name}"
    if bench.is_cuda:
        attempt(bench, what, partial(add, what, theirs))
    else:
        bench.leave_out(what, "needs CUDA")
