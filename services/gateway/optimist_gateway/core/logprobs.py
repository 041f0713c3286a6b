"""How likely the tokens of an answer were, with their texts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, how likely it was, and the likeliest ones in its place.

    Nothing more is needed to word it: `api/logprobs.py` makes the objects of both endpoints.
    """

    token_id: int
    text: str
    """The token alone, with U+FFFD for bytes that are no text."""
    token_bytes: bytes
    """Its bytes, also if they are but a part of a character."""
    logprob: float | None
    """Natural logarithm of the model's probability before sampling parameters change it; None for
    the first token of a prompt, which nothing precedes."""
    text_offset: int = 0
    """Where the token begins in the text of its choice, in characters."""
    top: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens in this place, the likeliest first; their own `top` is empty."""
