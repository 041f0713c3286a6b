"""Rows in the slots of a model, and the plans that move them on."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_measure.shape import Shape
from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import (
    MOST_WINDOW_NODES,
    Admission,
    Plan,
    PlannedRow,
    StepResult,
    WindowUpdate,
)
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model
from optimist_worker.runner.runner import Runner

BLOCK_SIZE = 16
WARM_UP_STEPS = 3
"""A step runs as it is and is captured as a graph, and is replayed."""
ROOM = 1024
"""Tokens that a row may generate in one measurement."""


class NotPossibleError(Exception):
    """Why a section or a row cannot be measured here."""


@dataclass
class Loaded:
    """A model on the device, with slots and two runners that share them."""

    shape: Shape
    model: Model
    state: DeviceState
    runner: Runner
    plain: Runner
    """Without CUDA graphs."""
    successors: list[int] = field(default_factory=list)
    sequence: int = 0

    def follow(self, token: int, number: int) -> list[int]:
        """Returns what a firm text goes on with."""
        text = []
        for _ in range(number):
            token = self.successors[token]
            text.append(token)
        return text


def prompt_of(loaded: Loaded, slot: int, length: int) -> list[int]:
    """Returns a random prompt."""
    tokens = np.random.default_rng(slot).integers(0, loaded.shape.vocab_size, length)
    return [int(token) for token in tokens]


def release_all(loaded: Loaded) -> None:
    """Frees all slots, whichever runner holds them."""
    loaded.runner.release_all()
    loaded.plain.release_all()


def admit(loaded: Loaded, runner: Runner, batch: int, ctx: int) -> list[list[int]]:
    """Puts rows with contexts of some length into the slots, ready to go on; returns prompts.

    Raises:
        NotPossibleError: They do not fit.
    """
    per_row = -(-(ctx + ROOM) // BLOCK_SIZE)
    sizes = loaded.state.sizes
    if batch * per_row > sizes.num_blocks or ctx + ROOM > sizes.max_model_len:
        raise NotPossibleError(f"{batch} rows of {ctx + ROOM} tokens do not fit into memory")
    release_all(loaded)
    prompts = [prompt_of(loaded, slot, ctx) for slot in range(batch)]
    num_cached = (ctx - 1) // BLOCK_SIZE
    admissions, rows = [], []
    for slot, prompt in enumerate(prompts):
        # Blocks of a row do not lie one after the other, as in a pool that is in use.
        blocks = [slot + number * batch for number in range(per_row)]
        cached, new = blocks[:num_cached], blocks[num_cached:]
        admissions.append(
            Admission(slot, f"r{slot}", prompt, ctx, SamplingParams(), cached_blocks=cached)
        )
        rows.append(PlannedRow(slot, ctx - num_cached * BLOCK_SIZE, 0, new))
    plan = plan_rows(loaded, rows, admissions=admissions)
    checked(runner.execute(plan))
    return prompts


def set_windows(loaded: Loaded, runner: Runner, prompts: list[list[int]], base: int) -> None:
    """Predicts what texts go on with after `base` tokens of their output."""
    windows = []
    for slot, prompt in enumerate(prompts):
        text = loaded.follow(prompt[-1], base + MOST_WINDOW_NODES)
        windows.append(WindowUpdate(slot, base, text[base:]))
    checked(runner.execute(plan_rows(loaded, [], windows=windows)))


def plan_rows(loaded: Loaded, rows: Sequence[PlannedRow], **parts: Any) -> Plan:
    """Returns a plan for some rows."""
    loaded.sequence += 1
    columns = np.array([row[:3] for row in rows], dtype=np.int32).reshape(-1, 3)
    return Plan(
        loaded.sequence,
        slots=columns[:, 0],
        num_known_tokens=columns[:, 1],
        num_draft_tokens=columns[:, 2],
        num_new_blocks=np.array([len(row.new_blocks) for row in rows], dtype=np.int32),
        new_blocks=np.array([b for row in rows for b in row.new_blocks], dtype=np.int32),
        **parts,
    )


def next_plan(loaded: Loaded, batch: int, drafts: int, **parts: Any) -> Plan:
    """Returns the plan of one more step of all rows."""
    return plan_rows(loaded, [PlannedRow(slot, 1, drafts, []) for slot in range(batch)], **parts)


def checked(result: StepResult) -> StepResult:
    """Returns a result in which no row has failed."""
    if result.errors:
        raise RuntimeError(f"a row failed: {next(iter(result.errors.values()))}")
    return result


def warm_up(loaded: Loaded, runner: Runner, batch: int, ctx: int, drafts: int) -> Plan:
    """Admits rows that verify right drafts; returns the plan of their step, which has run before.

    Raises:
        NotPossibleError: They do not fit.
    """
    prompts = admit(loaded, runner, batch, ctx)
    plan = next_plan(loaded, batch, drafts)
    if drafts:
        set_windows(loaded, runner, prompts, 1)
    warmed = run_steps(runner, plan, WARM_UP_STEPS, depth=1)[-1]
    if drafts:
        set_windows(loaded, runner, prompts, int(warmed.lengths.min()) - ctx)
    return plan


def run_steps(runner: Runner, plan: Plan, number: int, depth: int = 2) -> list[StepResult]:
    """Runs a plan some times, so many launched ahead; returns the results."""
    depth = min(depth, runner.engine.executor.most_plans)
    running: deque[Any] = deque()
    results = []
    for _ in range(number):
        running.append(runner.launch(plan))
        if len(running) >= depth:
            results.append(checked(runner.collect(running.popleft())))
    while running:
        results.append(checked(runner.collect(running.popleft())))
    return results
