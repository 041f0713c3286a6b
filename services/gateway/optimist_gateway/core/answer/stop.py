"""Stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string.

    Text is held back only as long as it could be the beginning of a stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Takes the stop strings; raises ValueError if one is empty."""
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        self._stop = tuple(stop)
        self._held = ""
        self.found = False
        """Whether a stop string was seen; all later text is dropped."""

    def __bool__(self) -> bool:
        """Tells whether there is any stop string."""
        return bool(self._stop)

    def push(self, text: str) -> str:
        """Adds text; returns what of all text so far is new and certain to precede any stop."""
        if self.found or not text:
            return ""
        held = self._held + text
        positions = [start for stop in self._stop if (start := held.find(stop)) >= 0]
        if positions:
            self.found = True
            self._held = ""
            return held[: min(positions)]
        cut = len(held) - self._beginning_length(held)
        self._held = held[cut:]
        return held[:cut]

    def flush(self) -> str:
        """Returns the text that is still held back, as no more will come."""
        held, self._held = self._held, ""
        return held

    def _beginning_length(self, text: str) -> int:
        """Returns the length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop):
                return length
        return 0
