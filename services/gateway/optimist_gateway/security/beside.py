"""Work on what a client sent that would keep the event loop from everybody else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

INLINE = 2**14
"""So many characters, bytes or tokens take no longer than to hand them to a thread."""
LONG = INLINE + 1
"""Of what is not worth measuring."""
# One after the other: threads that want the interpreter keep the event loop from it all together.
_LANE = ThreadPoolExecutor(1, "beside")


async def beside(work: Callable[[], T], size: int) -> T:
    """Returns what work on so many characters, bytes or tokens returns, done in a thread if many.

    The event loop waits for the interpreter a few milliseconds at a time, unless the work is one
    call of a library that does not let go of it: such calls must be on little at a time.
    """
    if size <= INLINE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_LANE, copy_context().run, work)
