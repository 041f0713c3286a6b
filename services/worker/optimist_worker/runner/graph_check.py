"""Compares captured steps with eager ones, and captures the usual ones, before any request."""

import logging
import time
from collections.abc import Callable
from itertools import takewhile

from optimist_common.errors import SetupError, one_line
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.execution.executor import DeviceLostError
from optimist_worker.runner.cost import admit_alone, plan_row
from optimist_worker.runner.runner import Runner

logger = logging.getLogger(__name__)

_NUM_TOKENS = 8
_DRAFTS = [3, 1, 2]
_NUM_PROMPTS = 3
"""The first runs as it is and is captured; the others replay it."""
_SECONDS = 15.0
"""Most that a start takes longer for the capture of usual steps; a graph takes two passes."""


def check_graphs(runner: Runner) -> bool:
    """Returns whether steps are captured: not where captured ones emit other tokens, or fail.

    Some short requests, all different, go through the same steps without and with graphs. Raises
    SetupError if the device computes nothing any more after a captured step.
    """
    executor = runner.engine.executor
    if not executor.uses_graphs:
        return False
    executor.uses_graphs = False
    expected = [_run(runner, first) for first in range(_NUM_PROMPTS)]
    executor.uses_graphs = True
    try:
        found = [_run(runner, first) for first in range(_NUM_PROMPTS)]
        runner.release_all()
    except DeviceLostError as error:
        raise _lost(error) from None
    executor.uses_graphs = found == expected
    if found != expected:
        logger.warning("eager steps replace CUDA graphs, which is slower: they emit other tokens")
    return executor.uses_graphs


def capture_steps(runner: Runner, clock: Callable[[], float] = time.monotonic) -> None:
    """Captures steps of the usual sizes, as many as there is time for, where steps are captured.

    Raises SetupError if the device computes nothing any more after one.
    """
    if not runner.engine.executor.uses_graphs:
        return
    begin = clock()
    sizes = takewhile(lambda _: clock() - begin < _SECONDS, runner.engine.usual_sizes())
    try:
        number = sum(_captures(runner, size) for size in sizes)
    except DeviceLostError as error:
        raise _lost(error) from None
    logger.info("ran steps of %d usual sizes for %.1f s to capture them", number, clock() - begin)


def _captures(runner: Runner, size: StepBounds) -> bool:
    """Runs a step of a size, which captures it, and says whether it could be run."""
    try:
        runner.engine.run_padding(size)
    except Exception as error:
        runner.engine.executor.check_failure(error)
        logger.warning("a usual step fails: %s", one_line(error))
        return False
    return True


def _lost(error: DeviceLostError) -> SetupError:
    return SetupError(
        f"--cuda-graphs: the device computes nothing any more after a captured step ({error}); "
        "start with --no-cuda-graphs"
    )


def _run(runner: Runner, first: int) -> list[list[int] | dict[int, str]]:
    """Runs a request of its own: a prompt, drafts, and single tokens; returns what each brings."""
    vocab_size, block_size = runner.engine.model.vocab_size, runner.engine.state.sizes.block_size
    tokens = [(first * _NUM_TOKENS + index) % vocab_size for index in range(_NUM_TOKENS)]
    admit_alone(runner, tokens, [token % vocab_size for token in _DRAFTS])
    found: list[list[int] | dict[int, str]] = []
    num_blocks = min(-(-2 * _NUM_TOKENS // block_size), runner.engine.state.sizes.num_blocks)
    blocks = list(range(num_blocks))
    for num_known, num_drafts in ((_NUM_TOKENS, len(_DRAFTS)), (1, 0), (1, 0)):
        result = runner.execute(plan_row(num_known, num_drafts, blocks))
        found.append(result.errors or result.token_ids.tolist())
        blocks = []
    return found
