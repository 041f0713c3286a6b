"""Whether a proposer that was sent batches answers none of them."""

SILENT_SECONDS = 2.0
"""A proposer that has answered nothing for so long, though it was to, is passed over."""


class Silence:
    """For how long the answer to a batch is due."""

    def __init__(self) -> None:
        """Begins with nothing to answer."""
        self._since: float | None = None

    def note_sent(self, now: float) -> None:
        """Notes that a batch was sent at a time, in seconds."""
        if self._since is None:
            self._since = now

    def note_answer(self, now: float, num_unanswered: int) -> None:
        """Notes that a batch was answered, and how many are not yet."""
        self._since = now if num_unanswered else None

    def has_lasted(self, now: float) -> bool:
        """Returns whether it has lasted for too long."""
        return self._since is not None and now - self._since > SILENT_SECONDS
