"""How likely the tokens of an answer were, with their texts."""

from collections.abc import Callable
from dataclasses import dataclass

from optimist_gateway.core.answer.output import TokenLogprobs

Describe = Callable[[int], tuple[str, bytes]]
"""Returns the text and the bytes of a token."""

SMALLEST = -9999.0
"""Stands for the logarithm of 0, which JSON cannot say; OpenAI's number for it."""


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


def token_logprob(
    token_id: int, logprobs: TokenLogprobs | None, text_offset: int, describe: Describe
) -> TokenLogprob:
    """Returns what is told of a token.

    Args:
        token_id: The token.
        logprobs: What the scheduler says of it; None for the first token of a prompt.
        text_offset: Where the token begins in the text of its choice.
        describe: Knows the vocabulary.
    """
    if logprobs is None:
        return TokenLogprob(token_id, *describe(token_id), None, text_offset)
    top = tuple(
        TokenLogprob(candidate, *describe(candidate), max(logprob, SMALLEST), text_offset)
        for candidate, logprob in zip(
            logprobs.candidate_token_ids, logprobs.candidate_logprobs, strict=True
        )
    )
    logprob = max(logprobs.logprob, SMALLEST)
    return TokenLogprob(token_id, *describe(token_id), logprob, text_offset, top)
