"""What one request may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits that the person who runs the gateway sets."""

    max_n: int
    """Answers to one prompt that are generated."""
    max_prompts: int
    """Prompts of a request."""
    max_choices: int
    """Answers to all its prompts."""
    max_prediction_bytes: int
    """All predictions of a request together, in bytes of UTF-8 text."""
    keep_alive_seconds: float = 15.0
    """Silence after which a stream gets a comment."""
