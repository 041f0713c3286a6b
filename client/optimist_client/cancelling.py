"""Tells a task that is cancelled from a call that is: gRPC raises the same error for both."""

import asyncio


def is_being_cancelled() -> bool:
    """Returns whether somebody has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
