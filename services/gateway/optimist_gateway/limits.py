"""What one request may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits that the person who runs the gateway sets."""

    max_n: int
    """Choices of a request."""
    max_prediction_bytes: int
    """All predictions of a request together, in bytes of UTF-8 text."""
