"""When to leave a failing peer alone, and when to try it again."""


class CircuitBreaker:
    """Open after a failure for a time that doubles with each further one; closed by a success."""

    def __init__(self, first_pause_seconds: float, longest_pause_seconds: float) -> None:
        self._first, self._longest = first_pause_seconds, longest_pause_seconds
        self._pause = 0.0
        self._open_until = float("-inf")

    def allows(self, now: float) -> bool:
        """Returns whether the peer may be tried at `now`, in seconds of any steady clock."""
        return now >= self._open_until

    def succeeded(self) -> None:
        """Notes that the peer answered."""
        self._pause = 0.0
        self._open_until = float("-inf")

    def failed(self, now: float) -> None:
        """Notes that the peer did not answer."""
        self._pause = min(max(2 * self._pause, self._first), self._longest)
        self._open_until = now + self._pause
