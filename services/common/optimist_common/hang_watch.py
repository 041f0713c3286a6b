"""Tells by the health service when a service's work stands still."""

import asyncio
import logging
from collections.abc import Callable

from optimist_common.network.server import GrpcServer

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 1.0


async def watch_for_hangs(
    server: GrpcServer, seconds_at_work: Callable[[], float], hang_seconds: float
) -> None:
    """Takes a service off, and says that it is not alive, while a step takes too long.

    Returns never.

    Args:
        server: Whose health is set; it must be serving.
        seconds_at_work: Returns how long the running step has taken, 0 if none runs.
        hang_seconds: The time from which on it must be taken for stuck.
    """
    hangs = False
    while True:
        await asyncio.sleep(min(hang_seconds / 4, LONGEST_PAUSE_SECONDS))
        seconds = seconds_at_work()
        if (seconds > hang_seconds) is hangs:
            continue
        hangs = not hangs
        if hangs:
            logger.critical("a step has not ended for %.0f seconds", seconds)
        else:
            logger.warning("steps end again")
        # Who hears that it serves no more can ask whether it hangs.
        await server.set_alive(alive=not hangs)
        await server.set_serving(serving=not hangs)
