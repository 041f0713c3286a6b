"""Times forward passes of growing size, before the first request."""

import logging
import time
from collections.abc import Callable

from optimist_common.sampling import SamplingParams
from optimist_worker.core.cost import CostCurve, fit_curve, pass_sizes
from optimist_worker.core.row import Row
from optimist_worker.core.slot import Slot
from optimist_worker.runner import Runner

logger = logging.getLogger(__name__)

_NUM_PASSES = 3
"""Of each size, after one to warm up; the best counts."""


def measure_cost(
    runner: Runner,
    max_num_batched_tokens: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Times passes of one row that verifies drafts, from 1 token to as many as fit.

    It writes to the first KV blocks, so no request may run yet.

    Args:
        runner: The worker's, without requests.
        max_num_batched_tokens: Most tokens of a pass.
        seconds: Most time for all of it; sizes that would take longer are left out. 0 measures
            nothing.
        clock: Returns seconds.
    """
    pool = runner.pool
    fitting = min(max_num_batched_tokens, pool.num_blocks * pool.block_size, runner.max_model_len)
    times: dict[int, float] = {}
    begin, spent = clock(), 0.0
    for size in pass_sizes(fitting):
        # Twice the tokens take up to twice the time.
        if clock() - begin + 2 * spent >= seconds:
            break
        size_begin = clock()
        try:
            times[size] = _time_pass(runner, size, clock)
        except RuntimeError as error:
            logger.warning("a pass of %d tokens cannot be timed: %s", size, error)
            break
        spent = clock() - size_begin
    curve = fit_curve(times)
    if times:
        logger.info(
            "a pass of 1 token takes %d us, one of %d takes %d us",
            curve.microseconds[0],
            curve.num_tokens[-1],
            curve.microseconds[-1],
        )
    return curve


def _time_pass(runner: Runner, num_tokens: int, clock: Callable[[], float]) -> float:
    """Returns the best time of one pass, in seconds, logits and choice of tokens included."""
    slot = Slot(
        request_id="cost",
        token_ids=[0],
        num_prompt_tokens=1,
        sampling=SamplingParams(),
        max_length=runner.max_model_len,
        block_table=list(range(-(-num_tokens // runner.pool.block_size))),
    )
    row = Row(slot_id=0, slot=slot, num_known_tokens=1, draft_token_ids=[0] * (num_tokens - 1))
    runner.compute([row])
    best = float("inf")
    for _ in range(_NUM_PASSES):
        start = clock()
        runner.compute([row])
        best = min(best, clock() - start)
    return best
