"""Ends vLLM's engine core with the process that it serves, which it outlives by itself.

An orphan would hold its device's memory, and the engine that is started again would find none.
"""

import os
import signal
import time
from threading import Thread

PARENT = "OPTIMIST_VLLM_PARENT"
"""Variable of the environment with the id of the process whose children end with it."""
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0


def watch() -> None:
    """Begins to watch, in a child of the process that the variable names."""
    parent = os.environ.get(PARENT)
    if parent is not None and os.getppid() == int(parent):
        Thread(target=_end_after, args=(int(parent),), name="watch-parent", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
