"""How likely the tokens of an answer were, with their texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optimist_gateway.core.answer.output import StepOutput, TokenLogprobs

Describe = Callable[[int], tuple[str, bytes]]
"""Returns the text and the bytes of a token."""

SMALLEST = -9999.0
"""In place of the logarithm of 0, which JSON cannot say; OpenAI's number for it."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, how likely it was, and the likeliest ones at its position."""

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
    """The likeliest tokens at this position, the likeliest first; their own `top` is empty."""


def token_logprob(
    token_id: int, logprobs: TokenLogprobs | None, text_offset: int, describe: Describe
) -> TokenLogprob:
    """Returns how likely a token was; without `logprobs` it is the first one of a prompt."""
    if logprobs is None:
        return TokenLogprob(token_id, *describe(token_id), None, text_offset)
    candidates = zip(logprobs.candidate_token_ids, logprobs.candidate_logprobs, strict=True)
    top = tuple(
        TokenLogprob(candidate, *describe(candidate), max(logprob, SMALLEST), text_offset)
        for candidate, logprob in candidates
    )
    logprob = max(logprobs.logprob, SMALLEST)
    return TokenLogprob(token_id, *describe(token_id), logprob, text_offset, top)


@dataclass(slots=True)
class LogprobReader:
    """Reads how likely the tokens of one answer were, step by step."""

    describe: Describe
    text_offset: int = 0
    """Where the next token begins in the text of the choice, in characters."""

    def read(
        self, output: StepOutput, token_ids: Sequence[int], lengths: Sequence[int]
    ) -> list[TokenLogprob]:
        """Returns how likely the tokens of a step were.

        Args:
            output: The step.
            token_ids: Those of its tokens that are part of the answer.
            lengths: How many characters each of them added to the decoded text, those that are not
                shown left out.

        Raises:
            ValueError: The scheduler does not say it.
        """
        if token_ids and (output.logprobs is None or not output.logprobs.tokens):
            raise ValueError("tokens came without their log-probabilities")
        read = []
        for index, token in enumerate(token_ids):
            logprobs = output.logprobs.tokens[index] if output.logprobs else None
            read.append(token_logprob(token, logprobs, self.text_offset, self.describe))
            self.text_offset += lengths[index] if index < len(lengths) else 0
        return read
