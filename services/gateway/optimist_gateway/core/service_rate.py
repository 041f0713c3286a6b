"""How fast places become free, as measured."""

from math import exp

MEMORY_SECONDS = 30.0
"""What happened longer ago than this counts for little."""
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between these a client is told to come back."""


class ServiceRate:
    """Exponentially weighted rate of events."""

    def __init__(self, now: float) -> None:
        self._started = self._updated = now
        self._weight = 0.0

    def observe(self, count: int, now: float) -> None:
        """Notes that `count` places became free at a time, in seconds."""
        self._decay(now)
        self._weight += count

    def per_second(self, now: float) -> float:
        """Returns the rate; 0 if nothing was observed."""
        self._decay(now)
        # In the beginning the weights do not yet sum to MEMORY_SECONDS.
        seen = MEMORY_SECONDS * (1 - exp(-max(now - self._started, 1.0) / MEMORY_SECONDS))
        return self._weight / seen

    def seconds_until(self, count: int, now: float) -> float:
        """Returns when `count` places will probably be free, bounded to what clients bear."""
        rate = self.per_second(now)
        if not self._weight:
            return SHORTEST_SECONDS
        return bounded(count / rate if count < rate * LONGEST_SECONDS else LONGEST_SECONDS)

    def _decay(self, now: float) -> None:
        self._weight *= exp(-max(now - self._updated, 0.0) / MEMORY_SECONDS)
        self._updated = now


def bounded(seconds: float) -> float:
    """Returns how long a client is told to wait."""
    return min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)
