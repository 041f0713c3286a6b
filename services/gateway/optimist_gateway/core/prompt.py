"""A prompt as the model reads it."""

from dataclasses import dataclass

from optimist_gateway.core.answer.places import PromptPlaces


@dataclass(frozen=True)
class Prompt:
    """What an answer continues."""

    token_ids: list[int]
    text: str | None = None
    """What the client sent, if it sent text and may ask for it back."""
    places: PromptPlaces | None = None
    """Where its tokens stand in what the client sent; None if that is tokens, or if nobody asks."""
