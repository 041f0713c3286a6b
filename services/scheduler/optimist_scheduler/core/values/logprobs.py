"""How likely the model took tokens of one request to be, as the worker has reported it."""

from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.values.arrays import Float32Array, Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Log-probabilities: first of prompt tokens that follow one another, then of new tokens."""

    first_prompt_position: int
    """Position in the sequence of the first of the prompt tokens."""
    num_prompt_tokens: int
    num_prompt_candidates: int
    """Likeliest tokens that are reported at the position of each prompt token."""
    num_candidates: int
    """The same in the place of each new token."""
    logprobs: Float32Array
    """Of each token [num_prompt_tokens + num_tokens]; of the prompt's alone if no others are
    wanted."""
    candidate_token_ids: Int32Array
    """The likeliest tokens, place after place
    [num_prompt_tokens * num_prompt_candidates + num_tokens * num_candidates]."""
    candidate_logprobs: Float32Array
    """Theirs."""

    @property
    def num_tokens(self) -> int:
        """New tokens that are reported."""
        return len(self.logprobs) - self.num_prompt_tokens

    @property
    def end(self) -> int:
        """Position after the last of the prompt tokens."""
        return self.first_prompt_position + self.num_prompt_tokens

    def cut(self, num_skipped: int, num_kept: int) -> "Logprobs":
        """Returns the same without what is not delivered.

        Args:
            num_skipped: Prompt tokens, from the front, that are left out.
            num_kept: New tokens, from the front, that are kept at most.
        """
        if not num_skipped and num_kept >= self.num_tokens:
            return self
        num_kept = min(num_kept, self.num_tokens)
        first = num_skipped * self.num_prompt_candidates
        end = self.num_prompt_tokens * self.num_prompt_candidates + num_kept * self.num_candidates
        return Logprobs(
            self.first_prompt_position + num_skipped,
            self.num_prompt_tokens - num_skipped,
            self.num_prompt_candidates,
            self.num_candidates,
            self.logprobs[num_skipped : self.num_prompt_tokens + num_kept],
            self.candidate_token_ids[first:end],
            self.candidate_logprobs[first:end],
        )


def find_logprobs_fault(
    reported: Logprobs, num_emitted: int, num_prompt_tokens: int, vocab_size: int
) -> str | None:
    """Returns why they cannot be of a row; None if they can.

    Args:
        reported: What is reported.
        num_emitted: Tokens that the row has emitted.
        num_prompt_tokens: Length of the row's prompt, in tokens.
        vocab_size: Token ids are below.
    """
    number, widths = (
        reported.num_prompt_tokens,
        (reported.num_prompt_candidates, reported.num_candidates),
    )
    if number < 0 or min(widths) < 0 or max(widths) > vocab_size:
        return (
            f"logprobs: {number} prompt tokens with {widths[0]} candidates, {widths[1]} of others"
        )
    if number and not 0 < reported.first_prompt_position <= num_prompt_tokens - number:
        first, last = reported.first_prompt_position, reported.end - 1
        return f"logprobs: positions {first} to {last} of the prompt"
    if reported.num_tokens not in (0, num_emitted):
        return f"logprobs: {len(reported.logprobs)} of {number} and {num_emitted} tokens"
    num_candidates = number * widths[0] + reported.num_tokens * widths[1]
    if not len(reported.candidate_token_ids) == len(reported.candidate_logprobs) == num_candidates:
        return f"candidate_token_ids, candidate_logprobs: not {num_candidates}"
    ids = reported.candidate_token_ids
    # Negative numbers are large without their sign.
    if len(ids) and int(ids.view(np.uint32).max()) >= vocab_size:
        return f"candidate_token_ids: not from 0 to {vocab_size - 1}"
    if np.isnan(reported.logprobs).any() or np.isnan(reported.candidate_logprobs).any():
        return "logprobs: not all are numbers"
    return None
