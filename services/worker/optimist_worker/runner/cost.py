"""Times passes and drafts of growing size, before the first request."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import MOST_WINDOW_NODES, Admission, Plan, StepResult, WindowUpdate
from optimist_worker.runner.runner import Runner


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Times of passes; both lists are empty if none was timed."""

    num_tokens: list[int]
    """Ascending, `[num_points]`."""
    microseconds: list[int]
    """Never decreasing, `[num_points]`."""


def pass_sizes(most_tokens: int) -> list[int]:
    """Returns 1, 2, 4, 8 and so on, and `most_tokens` as the last."""
    sizes = [2**power for power in range(most_tokens.bit_length()) if 2**power < most_tokens]
    return [*sizes, most_tokens] if most_tokens > 0 else []


def fit_curve(times: dict[int, float]) -> CostCurve:
    """Makes a curve that never decreases.

    A pass of fewer tokens costs no more than one of more; where the times say otherwise, the
    smaller one was disturbed, because what disturbs a measurement makes it longer.

    Args:
        times: Best time by number of tokens, in seconds.
    """
    sizes = sorted(times)
    fitted = list(accumulate((times[size] for size in reversed(sizes)), min))[::-1]
    return CostCurve(sizes, [max(1, round(seconds * 1e6)) for seconds in fitted])


logger = logging.getLogger(__name__)


class _PassError(Exception):
    """A pass that failed."""


class KeyCosts(NamedTuple):
    """What a pass takes longer for keys in memory, in picoseconds; 0 if that was not timed."""

    row_ps: int = 0
    """For each key of a row."""
    token_ps: int = 0
    """For each key and each token of the row after its first."""


NO_KEY_COSTS = KeyCosts()


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What was timed at start."""

    passes: CostCurve
    drafter_us: list[int]
    """Microseconds by the depth of the drafts, from 1 on; empty if there was nothing to time."""
    keys: KeyCosts = NO_KEY_COSTS


_NUM_PASSES = 3
"""Of each size, after one to warm up; the best counts."""


def measure_costs(runner: Runner, seconds: float) -> MeasuredCosts:
    """Times passes and the drafter, each for about half of some seconds; then frees the slots.

    What keys cost is a few passes more.
    """
    share = seconds if runner.engine.drafter is None else seconds / 2
    passes = measure_cost(runner, share)
    keys = measure_keys(runner, passes, share)
    drafter_us = measure_drafter(runner, passes, share)
    runner.release_all()
    runner.engine.drafter_us = drafter_us
    return MeasuredCosts(passes, drafter_us, keys)


def measure_cost(
    runner: Runner, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> CostCurve:
    """Times passes of one row that verifies drafts, from 1 token to as many as fit.

    A pass of more tokens than a window holds has a chunk of a prompt before its drafts.

    It writes to the first KV blocks, so no request may run yet.

    Args:
        runner: The worker's, without requests.
        seconds: Most time for all of it; sizes that would take longer are left out. 0 measures
            nothing.
        clock: Returns seconds.
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
    times = _best_times(failure, pass_sizes(fitting), 2, time_pass, seconds, clock)
    curve = fit_curve(times)
    if times:
        logger.info(
            "a pass of 1 token takes %d us, one of %d takes %d us",
            curve.microseconds[0],
            curve.num_tokens[-1],
            curve.microseconds[-1],
        )
    return curve


_MOST_KEYS = 2048
_LEAST_KEYS = 256
"""Of fewer the times are mostly noise."""
_KEY_DRAFTS = 16


def measure_keys(
    runner: Runner,
    passes: CostCurve,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> KeyCosts:
    """Times passes of one row with many keys in memory, as blocks that nobody has computed.

    Args:
        runner: The worker's, without requests.
        passes: What passes take with few keys.
        seconds: Most time for all of it; 0 measures nothing.
        clock: Returns seconds.
    """
    sizes = runner.engine.state.sizes
    room = min(sizes.num_blocks * sizes.block_size, sizes.max_model_len) - _KEY_DRAFTS - 2
    num_cached = min(_MOST_KEYS, room) // sizes.block_size
    num_keys = num_cached * sizes.block_size
    if num_keys < _LEAST_KEYS or not passes.num_tokens or passes.num_tokens[-1] <= _KEY_DRAFTS:
        return NO_KEY_COSTS
    blocks = _blocks(runner, num_keys + _KEY_DRAFTS + 2)
    pool = runner.engine.state.pool
    for memory in (*pool.keys, *pool.values):
        # What has never been written may be no number.
        memory[: len(blocks) * sizes.block_size].zero_()

    def time_more(num_drafts: int) -> float:
        admit_alone(runner, [0] * (num_keys + 1), [0] * num_drafts, blocks[:num_cached])
        plan = plan_row(1, num_drafts, blocks[num_cached:])
        start = clock()
        _execute(runner, plan)
        usual = np.interp(1 + num_drafts, passes.num_tokens, passes.microseconds) / 1e6
        return clock() - start - float(usual)

    failure = "a pass with %d drafts after many tokens cannot be timed: %s"
    times = _best_times(failure, (0, _KEY_DRAFTS), 2, time_more, seconds, clock)
    if len(times) < 2:
        return NO_KEY_COSTS
    alone, together = (max(0.0, each) * 1e12 / num_keys for each in times.values())
    keys = KeyCosts(round(alone), round(max(0.0, together - alone) / _KEY_DRAFTS))
    logger.info("1,000 keys take %d us, and %d for a further token", keys[0] / 1e3, keys[1] / 1e3)
    return keys


def measure_drafter(
    runner: Runner,
    passes: CostCurve,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[int]:
    """Times the drafter on one row after a pass that has emitted.

    Inside a captured step nothing can be timed; there it is what the step takes longer than a pass
    of as many tokens, which `passes` tells.

    Args:
        runner: The worker's, without requests.
        passes: What passes take.
        seconds: Most time for all of it; deeper drafts than that allows are left out.
        clock: Returns seconds.

    Returns:
        Microseconds by the depth of the drafts, from 1 on, never decreasing; empty if there is no
        drafter or no time, or if it fails.
    """
    if (drafter := runner.engine.drafter) is None:
        return []
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
        if result.draft_ns or not passes.num_tokens:
            return result.draft_ns / 1e9
        verify = np.interp(1 + num_drafts, passes.num_tokens, passes.microseconds) / 1e6
        return max(0.0, seconds - float(verify))

    depths, failure = range(1, most_depth + 1), "drafts of depth %d cannot be timed: %s"
    times = _best_times(failure, depths, 0, time_drafts, seconds, clock)
    curve = fit_curve(times)
    if times:
        logger.info("%d drafts take %d us", curve.num_tokens[-1], curve.microseconds[-1])
    return curve.microseconds


def _best_times(
    failure: str,
    sizes: Iterable[int],
    growth: int,
    measure: Callable[[int], float],
    seconds: float,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Measures sizes in turn until one fails or, taking `growth` times the last, would be late."""
    times: dict[int, float] = {}
    begin, spent = clock(), 0.0
    for size in sizes:
        size_begin = clock()
        if size_begin - begin + growth * spent >= seconds:
            break
        try:
            times[size] = min(measure(size) for _ in range(1 + _NUM_PASSES))
        except _PassError as error:
            logger.warning(failure, size, error)
            break
        spent = clock() - size_begin
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
    admission = Admission(
        0,
        "check",
        token_ids,
        len(token_ids),
        SamplingParams(),
        cached_blocks=list(cached_blocks),
    )
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
