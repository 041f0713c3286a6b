"""What a verify pass has computed, and what it takes to judge it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.ragged import Ragged


@dataclass(slots=True)
class VerifyPass:
    """The logits of R rows at each of their drafts, N in all, with what padding there is."""

    logits: Tensor
    """The target's, `[N, vocab_size]`."""
    nodes: Ragged
    """Which node of which row each row of logits is behind: element 0 of a row is behind its last
    known token, element 1 + i behind its draft i. Rows that emit nothing have no elements."""
    drafts: Drafts
    """None for rows that emit nothing."""
    slots: Tensor
    """Int64 `[R]`."""
    num_tokens: Tensor
    """Known tokens of each row, prompt and verified output, int64 `[R]`."""
    num_prompt_tokens: Tensor
    """Int64 `[R]`."""
    token_ids: Tensor
    """Tokens of all slots, `[S + 1, L]`; read only if penalties are needed."""
    sampling: SamplingTable
    needs: Needs
    """What the rows need at least."""
    allowed: Tensor | None = None
    """Tokens that may come behind each node, bool `[N, vocab_size]`; None: all."""

    def by_row(self, values: Tensor) -> Tensor:
        """Arranges values of the flat rows by row and node, `[N]` to `[R, 1 + K]`.

        What a row does not have is 0.
        """
        width = 1 + self.drafts.width
        if self.nodes.is_exact and len(values) == self.drafts.num_rows * width:
            return values.view(-1, width)
        elements = torch.arange(width, device=values.device)
        places = self.nodes.starts[:-1, None] + elements
        is_real = places < self.nodes.starts[1:, None]
        # The value behind the last one stands for all that is missing.
        padded = torch.nn.functional.pad(values, (0, 1))
        return padded[torch.where(is_real, places, len(values))]
