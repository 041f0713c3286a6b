"""What pauses do."""

from enum import Enum


class PauseMode(Enum):
    """What a pause does with the requests that run."""

    KEEP = "keep"
    """They stay where they are."""
    WAIT = "wait"
    """They run to their end; those that wait are kept."""
    ABORT = "abort"
    """All requests are ended."""
