"""How often each token occurred before each position, for the penalties."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class TokenCounts:
    """Counts before each of n positions, with one more column for what is not counted."""

    is_seen: Tensor
    """Whether the token is in prompt or output, bool `[n, vocab_size + 1]`."""
    output: Tensor
    """How often it is in the output, int32 `[n, vocab_size + 1]`."""

    def with_drafts(self, rows: Tensor, token_ids: Tensor, is_before: Tensor) -> "TokenCounts":
        """Counts on along the drafts before each of some positions.

        Args:
            rows: Which counts each position goes on from, int64 `[m]`.
            token_ids: Drafts, int64 `[m, K]`.
            is_before: Which of them lie before the position, bool `[m, K]`.

        Returns:
            Counts before m positions.
        """
        nowhere = self.output.shape[1] - 1
        places = torch.where(is_before, token_ids.clamp(0, nowhere), nowhere)
        is_seen = self.is_seen.index_select(0, rows).scatter_(1, places, True)
        output = self.output.index_select(0, rows)
        ones = torch.ones_like(places, dtype=output.dtype)
        return TokenCounts(is_seen, output.scatter_add_(1, places, ones))


def count_tokens(
    token_ids: Tensor, num_prompt_tokens: Tensor, num_tokens: Tensor, vocab_size: int
) -> TokenCounts:
    """Counts the known tokens of each row.

    Args:
        token_ids: Prompt and output, `[R, L]`.
        num_prompt_tokens: How many of them are the prompt's, int64 `[R]`.
        num_tokens: How many of them are known, int64 `[R]`.
        vocab_size: Number of tokens.
    """
    num_rows, length = token_ids.shape
    places = torch.arange(length, device=token_ids.device)
    known = torch.where(places < num_tokens[:, None], token_ids.long(), vocab_size)
    output = torch.where(places < num_prompt_tokens[:, None], vocab_size, known)
    shape = (num_rows, vocab_size + 1)
    is_seen = torch.zeros(shape, dtype=torch.bool, device=token_ids.device)
    counts = torch.zeros(shape, dtype=torch.int32, device=token_ids.device)
    ones = torch.ones_like(output, dtype=torch.int32)
    return TokenCounts(is_seen.scatter_(1, known, True), counts.scatter_add_(1, output, ones))
