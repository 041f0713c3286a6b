"""Times passes and drafts of growing size, before the first request."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import MOST_WINDOW_NODES, Admission, Plan, StepResult, WindowUpdate
from optimist_worker.runner.runner import Runner

logger = logging.getLogger(__name__)

Curve = dict[int, int]
"""Microseconds by size, in ascending order of sizes; never decreasing, empty if none was timed."""


class MeasuredCosts(NamedTuple):
    """What was timed at start."""

    passes: Curve
    """By the tokens of a pass."""
    drafter: Curve
    """By the depth of the drafts, from 1 on."""
    row_key_ps: int = 0
    """What a pass takes longer for each key of a row, in picoseconds; 0 if that was not timed."""
    token_key_ps: int = 0
    """The same for each key and each token of the row after its first."""


class _PassError(Exception):
    """A pass that failed."""


_NUM_ROUNDS = 3
"""In which each size is timed, with a pass to warm up before its first; the best time counts."""
_MOST_DOUBTS = 8
"""Further rounds, of the sizes whose best time cannot be right beside the others'."""
_DOUBTFUL = 1.1
"""Times as long as the others allow."""


def measure_costs(runner: Runner, seconds: float) -> MeasuredCosts:
    """Times passes and the drafter, each for about half of some seconds; then frees the slots.

    What keys cost is a few passes more.
    """
    share = seconds if runner.engine.drafter is None else seconds / 2
    begin = time.monotonic()
    passes = measure_cost(runner, share)
    keys = measure_keys(runner, passes, share)
    drafter = measure_drafter(runner, passes, share)
    runner.release_all()
    runner.engine.drafter_us = list(drafter.values())
    if passes:
        logger.info(
            "timed passes for %.1f s: a pass of 1 token takes %.1f ms, one of %d takes %.1f ms",
            time.monotonic() - begin,
            passes[1] / 1e3,
            max(passes),
            passes[max(passes)] / 1e3,
        )
    return MeasuredCosts(passes, drafter, *keys)


def fit_curve(times: dict[int, float]) -> Curve:
    """Makes a curve that never decreases, nor grows faster than the number of tokens.

    A pass costs no more than one of more tokens, and two of n tokens do the work of one of 2 n.
    Where the best times in seconds say otherwise one was disturbed, and so is too long.
    """
    return {size: max(1, round(_bound(times, size) * 1e6)) for size in sorted(times)}


def _bound(times: dict[int, float], size: int) -> float:
    """Returns the most that a size takes by the times of all."""
    return min(time * max(1.0, size / other) for other, time in times.items())


def _read(passes: Curve, num_tokens: int) -> float:
    """Returns what a pass takes in seconds."""
    return float(np.interp(num_tokens, list(passes), list(passes.values()))) / 1e6


def measure_cost(
    runner: Runner, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Curve:
    """Times passes of one row that verifies drafts, from 1 token to as many as fit.

    A pass of more tokens than a window holds has a chunk of a prompt before its drafts. Sizes that
    would take longer than some seconds in all are left out. It writes to the first KV blocks, so no
    request may run yet.
    """
    sizes = runner.engine.state.sizes
    fitting = min(
        sizes.max_num_batched_tokens,
        sizes.num_blocks * sizes.block_size,
        sizes.max_model_len - 1,
    )

    def time_pass(num_tokens: int) -> float:
        num_drafts = min(num_tokens - 1, MOST_WINDOW_NODES)
        num_known = num_tokens - num_drafts
        admit_alone(runner, [0] * num_known, [0] * num_drafts)
        plan = plan_row(num_known, num_drafts, _blocks(runner, num_tokens))
        start = clock()
        _execute(runner, plan)
        return clock() - start

    # Twice the tokens take up to twice the time.
    failure = "a pass of %d tokens cannot be timed: %s"
    powers = [2**power for power in range(fitting.bit_length())]
    wanted = sorted({*powers, fitting}) if fitting else []
    return fit_curve(_best_times(failure, wanted, 2, time_pass, seconds, clock))


_MOST_KEYS = 2048
_LEAST_KEYS = 256
"""Of fewer the times are mostly noise."""
_KEY_DRAFTS = 16


def measure_keys(
    runner: Runner, passes: Curve, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, int]:
    """Times passes of one row with many keys in memory, as blocks that nobody has computed.

    `passes` is what passes take with few keys. Returns the last two of `MeasuredCosts`: 0 where
    blocks are not all that a row needs, as with recurrent layers.
    """
    if runner.engine.state.recurrent is not None:
        return 0, 0
    sizes = runner.engine.state.sizes
    room = min(sizes.num_blocks * sizes.block_size, sizes.max_model_len) - _KEY_DRAFTS - 2
    num_cached = min(_MOST_KEYS, room) // sizes.block_size
    num_keys = num_cached * sizes.block_size
    if num_keys < _LEAST_KEYS or max(passes, default=0) <= _KEY_DRAFTS:
        return 0, 0
    blocks = _blocks(runner, num_keys + _KEY_DRAFTS + 2)
    pool = runner.engine.state.pool
    for memory in (*pool.keys, *pool.values):
        # What has never been written may be no number.
        memory[: len(blocks) * sizes.block_size].zero_()

    def time_more(num_tokens: int) -> float:
        num_drafts = num_tokens - 1
        admit_alone(runner, [0] * (num_keys + 1), [0] * num_drafts, blocks[:num_cached])
        plan = plan_row(1, num_drafts, blocks[num_cached:])
        start = clock()
        _execute(runner, plan)
        return max(0.0, clock() - start - _read(passes, num_tokens))

    failure = "a pass of %d tokens after many cannot be timed: %s"
    times = _best_times(failure, (1, 1 + _KEY_DRAFTS), 2, time_more, seconds, clock)
    if len(times) < 2:
        return 0, 0
    alone, together = (each * 1e12 / num_keys for each in times.values())
    return round(alone), round(max(0.0, together - alone) / _KEY_DRAFTS)


def measure_drafter(
    runner: Runner, passes: Curve, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Curve:
    """Times the drafter on one row after a pass that has emitted; deeper drafts may be left out.

    Inside a captured step nothing can be timed; there it is what the step takes longer than a pass
    of as many tokens, which `passes` tells. Nothing is returned if there is no drafter or no time,
    or if it fails.
    """
    if (drafter := runner.engine.drafter) is None:
        return {}
    most_tokens, most_depth = drafter.max_tokens, drafter.max_depth

    def time_drafts(depth: int) -> float:
        num_drafts = -(-depth * most_tokens // most_depth)
        admit_alone(runner, [0])
        _execute(runner, plan_row(1, 0, _blocks(runner, 2 + most_tokens)))
        num_failures = drafter.num_failures
        start = clock()
        result = _execute(runner, plan_row(1, num_drafts))
        seconds = clock() - start
        if drafter.num_failures > num_failures:
            raise _PassError("the drafter has failed")
        if result.draft_ns or not passes:
            return result.draft_ns / 1e9
        return max(0.0, seconds - _read(passes, 1 + num_drafts))

    depths, failure = range(1, most_depth + 1), "drafts of depth %d cannot be timed: %s"
    times = _best_times(failure, depths, 0, time_drafts, seconds, clock)
    return fit_curve(times)


def _best_times(
    failure: str,
    sizes: Iterable[int],
    growth: int,
    measure: Callable[[int], float],
    seconds: float,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Returns the best time of each size, up to the first that fails or would be late.

    All are measured in turn, again and again: on a busy machine passes are slow for a while, which
    should not be all passes of one size. A size is expected to take `growth` times the last.
    """
    times: dict[int, float] = {}
    waiting, begin = deque(sizes), clock()

    def is_in_time(further: float) -> bool:
        return clock() - begin + further < seconds

    def measure_all(sizes: Iterable[int]) -> None:
        for size in sizes:
            if not is_in_time(times.get(size, 0.0)):
                continue
            try:
                times[size] = min(times.get(size, math.inf), measure(size))
            except _PassError as error:
                logger.warning(failure, size, error)
                waiting.clear()
                return

    def next_seconds() -> float:
        last = next(reversed(times.values()), 0.0)
        return (_NUM_ROUNDS - 1) * sum(times.values()) + (1 + _NUM_ROUNDS) * growth * last

    for _ in range(_NUM_ROUNDS):
        measure_all(list(times))
        while waiting and is_in_time(next_seconds()):
            measure_all([waiting.popleft()] * 2)
    for _ in range(_MOST_DOUBTS):
        measure_all(size for size in sorted(times) if times[size] > _DOUBTFUL * _bound(times, size))
    return times


def _execute(runner: Runner, plan: Plan) -> StepResult:
    """Runs a plan; raises _PassError if a row fails."""
    result = runner.execute(plan)
    if result.errors:
        raise _PassError(next(iter(result.errors.values())))
    return result


def _blocks(runner: Runner, num_tokens: int) -> list[int]:
    return list(range(-(-num_tokens // runner.engine.state.sizes.block_size)))


def admit_alone(
    runner: Runner,
    token_ids: list[int],
    window: Sequence[int] = (),
    cached_blocks: Sequence[int] = (),
) -> None:
    """Makes a new request in slot 0, the only one, and sets its window, if any."""
    runner.release_all()
    number, sampling = len(token_ids), SamplingParams()
    admission = Admission(0, "check", token_ids, number, sampling, list(cached_blocks))
    windows = [WindowUpdate(0, 0, list(window))] if window else []
    runner.execute(Plan(sequence=0, admissions=[admission], windows=windows))


def plan_rows(num_rows: int, num_known: int, num_drafts: int, blocks: Sequence[int] = ()) -> Plan:
    """Returns a plan for some known tokens and drafts of each of the first slots.

    They share the new blocks evenly.
    """
    return Plan(
        sequence=0,
        slots=np.arange(num_rows, dtype=np.int32),
        num_known_tokens=np.full(num_rows, num_known, np.int32),
        num_draft_tokens=np.full(num_rows, num_drafts, np.int32),
        num_new_blocks=np.full(num_rows, len(blocks) // num_rows, np.int32),
        new_blocks=np.array(blocks, np.int32),
    )


def plan_row(num_known: int, num_drafts: int, blocks: Sequence[int] = ()) -> Plan:
    """Returns a plan for some known tokens of the only request and some drafts."""
    return plan_rows(1, num_known, num_drafts, blocks)
