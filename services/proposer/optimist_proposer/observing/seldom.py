"""Warnings that would come again and again, of which one of a kind is written now and then."""

import logging
import time

_INTERVAL_SECONDS = 10.0


class SeldomWarnings:
    """Writes a warning if none of its kind was written within the last ten seconds."""

    def __init__(self, logger: logging.Logger) -> None:
        """Takes where to write to."""
        self._logger = logger
        self._next: dict[str, float] = {}

    def write(self, kind: str, message: str, *arguments: object) -> None:
        """Writes a warning of a kind, of which there are few."""
        now = time.monotonic()
        if now >= self._next.get(kind, now):
            self._next[kind] = now + _INTERVAL_SECONDS
            self._logger.warning(message, *arguments)
