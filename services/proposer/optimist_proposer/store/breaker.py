"""When to leave a failing peer alone, and when to try it again."""


class CircuitBreaker:
    """Open after a failure, until a trial succeeds; the pause before one doubles each time."""

    def __init__(self, first_pause_seconds: float, longest_pause_seconds: float) -> None:
        self._first, self._longest = first_pause_seconds, longest_pause_seconds
        self._pause = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the peer is left alone."""
        return self._pause > 0

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next trial; 0 while it is closed."""
        return self._pause

    def succeeded(self) -> None:
        """Notes that the peer answered."""
        self._pause = 0.0

    def failed(self) -> None:
        """Notes that the peer did not answer."""
        self._pause = min(max(2 * self._pause, self._first), self._longest)
