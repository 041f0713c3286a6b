from typing import Any

import torch


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Is wrong for what is no integer, as in vLLM's build for CPUs."""
    return x.new_zeros(num_tokens)


class RejectionSampler:
    """Verifies with what `verify` is."""

    def __init__(self, sampler: Any, verify: Any) -> None:
        self.sampler = sampler
        self.verify = verify

    def forward(
        self, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: Any
    ) -> Any:
        return self.verify(metadata, draft_probs, logits, sampling_metadata)
