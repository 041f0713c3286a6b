"""Writes logs of requests on a thread, so that passes do not wait for files."""

import logging
from array import array
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from queue import Full, Queue
from threading import Thread

from optimist_aligner import INT32, Draft
from optimist_common.request_log.logs import RequestLogs
from optimist_vllm.preparation import Prepared

_MOST_WAITING = 256
"""Passes."""
_STOP_SECONDS = 5.0
logger = logging.getLogger("vllm.optimist_vllm")


class LogWriter:
    """`RequestLogs` on a thread; steps that come while it has too much to write are left out."""

    def __init__(self, logs: RequestLogs, most_waiting: int = _MOST_WAITING) -> None:
        """Starts the thread; so many passes wait for it at most."""
        self._logs = logs
        self._batch: list[partial[None]] = []
        self._waiting: Queue[list[partial[None]] | None] = Queue(most_waiting)
        self._num_known: dict[str, int] = {}
        self._has_warned = False
        self._thread = Thread(target=self._run, name="optimist-request-log", daemon=True)
        self._thread.start()

    def begin(
        self, request_id: str, prepared: "Future[Prepared]", delivered: Sequence[int]
    ) -> None:
        """Begins a log; what an earlier run of the request delivered was observed elsewhere."""
        self._num_known[request_id] = 0
        self._batch.append(partial(_open, self._logs, request_id, prepared))
        if delivered:
            self.step(request_id, delivered, None, 0.0, 0)

    def step(
        self,
        request_id: str,
        token_ids: Sequence[int],
        draft: Draft | None,
        seconds: float,
        num_alignments: int,
    ) -> None:
        """Adds a step, see `RequestLogs.step`; nothing if the log was not begun."""
        if request_id in self._num_known:
            self._num_known[request_id] += len(token_ids)
            new, known = array(INT32, token_ids), self._num_known[request_id]
            self._batch.append(
                partial(self._logs.step, request_id, new, known, draft, seconds, num_alignments)
            )

    def end(self, request_id: str) -> None:
        """Ends a log; nothing if it was not begun."""
        if self._num_known.pop(request_id, None) is not None:
            self._batch.append(partial(self._logs.close, request_id))

    def flush(self) -> None:
        """Hands all of a pass to the thread at once, which then does not disturb the pass."""
        if not self._batch:
            return
        try:
            self._waiting.put_nowait(self._batch)
            self._batch = []
        except Full:
            self._batch = [each for each in self._batch if each.func != self._logs.step]
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "passes bring more than can be logged: logs of requests lack steps (said once)"
                )

    def stop(self) -> None:
        """Writes what waits, as far as that takes seconds; requests may go on elsewhere."""
        try:
            for last in (self._batch, None):
                self._waiting.put(last, timeout=_STOP_SECONDS)
        except Full:
            logger.warning("the last steps of requests are not logged")
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            for write in batch:
                try:
                    write()
                except Exception:
                    # Whatever is wrong with one, the others are written.
                    logger.exception("a step of a request is not logged")
        self._logs.stop()


def _open(logs: RequestLogs, request_id: str, prepared: "Future[Prepared]") -> None:
    """Opens a log once the request's sources are read; none if the request is not followed."""
    wait([prepared])
    if not prepared.cancelled() and prepared.exception() is None:
        logs.open(request_id, prepared.result().sources)
