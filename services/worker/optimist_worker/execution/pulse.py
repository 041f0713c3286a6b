"""Notices ranks that are gone, also while nothing runs or all else waits for them."""

import logging
import os
import signal
import threading

from optimist_worker.execution.group import Group, GroupError, end_process

logger = logging.getLogger(__name__)

_SECONDS = 0.5
_GRACE_SECONDS = 2.0
"""How long a rank whose neighbour is gone waits to hear that this was meant."""


class Pulse:
    """A thread by which ranks show each other that they live; the process ends with the first.

    A rank that has died is noticed at once, one that hangs or whose machine is gone after
    `group.SILENT_SECONDS`. Ranks other than 0 cannot end by themselves: they ask, and rank 0 ends
    all in good order.
    """

    def __init__(self, group: Group) -> None:
        """Starts the thread."""
        self._group = group
        self._parent = os.getppid()
        self._asks_to_end = False
        self._ends = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Has rank 0 end all ranks, as by a signal."""
        self._asks_to_end = True

    def close(self) -> None:
        """Says that this rank ends; returns when all others do too or are gone."""
        self._ends.set()
        self._thread.join()

    def abandon(self) -> None:
        """Ends without the others, which will notice."""
        self._ends.set()

    def _run(self) -> None:
        try:
            while not self._beat():
                self._ends.wait(_SECONDS)
        except GroupError as error:
            if not self._ends.wait(_GRACE_SECONDS):
                end_process(f"another rank has ended: {error}")

    def _beat(self) -> bool:
        """Exchanges one pulse; returns whether all ranks end."""
        if os.getppid() != self._parent:
            end_process("the process that started this rank has ended")
        asked, ending = self._group.beat(asks=self._asks_to_end, ends=self._ends.is_set())
        if asked and self._group.ranks.is_leader and not self._has_ended:
            self._end_this_rank()
        return ending

    def _end_this_rank(self) -> None:
        """Ends this rank as a signal would, once it serves."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            logger.info("another rank was asked to end")
            self._has_ended = True
            os.kill(os.getpid(), signal.SIGTERM)
