"""Where verdicts arrive at the first stage, while it computes or waits for plans."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from optimist_worker.execution.ending import end_process
from optimist_worker.execution.group import GroupError
from optimist_worker.execution.stage_link import StageLink


class VerdictInbox:
    """A thread that always listens to the last stage; the process ends with that stage."""

    def __init__(self, link: StageLink) -> None:
        """Starts the thread."""
        self._link = link
        self._arrived: SimpleQueue[bytes] = SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._listen, name="verdicts", daemon=True)
        self._thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has arrived that was not taken."""
        return self._arrived.empty()

    def take(self) -> bytes:
        """Waits for the next verdict."""
        return self._arrived.get()

    def on_arrival(self, wake: Callable[[], None] | None) -> None:
        """Has something called, in the thread, when a verdict has arrived."""
        self._wake = wake

    def close(self) -> None:
        """Waits for the end, which the last stage tells by a verdict on nothing."""
        self._thread.join()

    def _listen(self) -> None:
        while True:
            try:
                verdict = self._link.next_verdict()
            except GroupError as error:
                end_process(f"the last stage is gone: {error}")
            if not verdict:
                return
            self._arrived.put(verdict)
            if (wake := self._wake) is not None:
                wake()
