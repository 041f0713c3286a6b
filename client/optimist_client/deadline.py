"""Until when a call, with all its retries, may last."""

import time
from typing import Self


class Deadline:
    """A point in time, or none."""

    def __init__(self, at: float | None) -> None:
        self._at = at

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """Returns the deadline in some seconds; None is none."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    def remaining(self) -> float | None:
        """Returns how many seconds are left, at least 0; None without a deadline."""
        return None if self._at is None else max(self._at - time.monotonic(), 0.0)
