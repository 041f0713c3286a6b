"""When a call that failed is made again, and until when a call with its retries may last."""

import random
import time
from dataclasses import dataclass
from typing import Self

from optimist_client.errors import OptimistError

_TEMPORARY = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})


@dataclass(frozen=True)
class RetryPolicy:
    """Calls that the server did not begin to answer are made again, each time a little later."""

    max_retries: int = 2
    first_wait_seconds: float = 0.2
    max_wait_seconds: float = 10.0

    def wait_seconds(
        self, error: OptimistError, num_retries: int, remaining_seconds: float | None
    ) -> float | None:
        """Returns how long to wait before the next try; None if there is to be none.

        The wait doubles with each retry, and a random half of it is left out so that clients which
        were refused together do not come back together; it is never shorter than what the server
        asks for.

        Args:
            error: Why the call failed.
            num_retries: How often it was made again already.
            remaining_seconds: Time until its deadline; None without one.
        """
        if error.status not in _TEMPORARY or num_retries >= self.max_retries:
            return None
        longest = min(self.first_wait_seconds * 2.0**num_retries, self.max_wait_seconds)
        wait = max(longest * random.uniform(0.5, 1.0), error.retry_after or 0.0)  # noqa: S311
        if remaining_seconds is not None and wait >= remaining_seconds:
            return None
        return wait


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
