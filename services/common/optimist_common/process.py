"""What concerns a process as a whole: when it ends, its garbage, and that it needs no PyTorch."""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
SELDOM = 50_000, 20, 100
"""Thresholds of the collector for services that make many objects, nearly none in a circle."""


def end_with_this_process(number: signal.Signals) -> Callable[[], None]:
    """Returns what a new process runs first, `preexec_fn`, to be ended with this one.

    However this one ends, Linux sends the new one the signal; other systems do not.
    """
    parent = os.getpid()

    def ask() -> None:
        if sys.platform != "linux":
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
        # If it ended before this was asked for, no signal comes.
        if os.getppid() != parent:
            os._exit(128 + number)

    return ask


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Lets the garbage collector look seldom at what is new, and not at all at what is here now."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def hide_torch() -> None:
    """Has transformers do without PyTorch from now on, as in an image that has none.

    Where PyTorch is installed, transformers imports all of it to load a tokenizer, which takes
    2.4 s and 330 MiB in each process. Call it where a process begins; what was imported before
    stays.
    """
    # The import system's own way to say that there is no such module.
    cast("dict[str, object]", sys.modules).setdefault("torch", None)
    # It would advise to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
