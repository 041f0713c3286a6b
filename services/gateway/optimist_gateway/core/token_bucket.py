"""A rate limit that lets bursts through and may fall into debt."""


class TokenBucket:
    """Holds at most a minute's worth of units and fills steadily; a rate of 0 is no limit."""

    def __init__(self, per_minute: float, now: float) -> None:
        """Starts full.

        Args:
            per_minute: Units that come in a minute, and the most that it holds.
            now: The time, in seconds.
        """
        self._per_minute = per_minute
        self._level = per_minute
        self._updated = now

    def seconds_until(self, units: float, now: float) -> float:
        """Returns how long it takes until so many units are there; 0 if they are."""
        if not self._per_minute:
            return 0.0
        self._fill(now)
        return max(units - self._level, 0.0) * 60 / self._per_minute

    def take(self, units: float, now: float) -> None:
        """Takes units; more than are there leave a debt."""
        self._fill(now)
        self._level -= units

    def is_full(self, now: float) -> bool:
        """Tells whether nothing was taken of late."""
        self._fill(now)
        return self._level >= self._per_minute

    def _fill(self, now: float) -> None:
        gained = max(now - self._updated, 0.0) * self._per_minute / 60
        self._level = min(self._level + gained, self._per_minute)
        self._updated = now
