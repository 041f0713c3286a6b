"""A prompt as the model reads it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """What an answer continues."""

    token_ids: list[int]
    text: str | None = None
    """What the client sent, if it sent text and may ask for it back."""
