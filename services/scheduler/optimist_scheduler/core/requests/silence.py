"""Whether a proposer that was sent batches answers none of them."""

SILENT_SECONDS = 2.0
"""A proposer that has answered nothing for so long, though it was to, is passed over."""


class Silence:
    """Begins when an answer is due for too long, and ends when none is due any more."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._has_begun = False

    def note_sent(self, now: float) -> None:
        """Notes that a batch was sent at a time, in seconds."""
        if self._since is None:
            self._since = now

    def note_answer(self, now: float, num_unanswered: int) -> None:
        """Notes that a batch was answered, and how many are not yet."""
        self._since = now if num_unanswered else None
        if not num_unanswered:
            self._has_begun = False

    def find(self, now: float) -> bool:
        """Returns whether the proposer is silent."""
        if self._since is not None and now - self._since > SILENT_SECONDS:
            self._has_begun = True
        return self._has_begun
