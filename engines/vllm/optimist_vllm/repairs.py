"""What of vLLM's sampling is mended where it verifies drafts."""

from functools import wraps
from typing import Any

import torch


def apply() -> None:
    """Mends this process: passes without drafts, and a fault of the CPU build if it is there."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    sampler = rejection_sampler.RejectionSampler
    sampler.forward = sampling_as_without_speculation(sampler.forward)
    if current_platform.is_cpu() and not expands_rightly(rejection_sampler.expand_batch_to_tokens):
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def sampling_as_without_speculation(forward: Any) -> Any:
    """Returns a `RejectionSampler.forward` that leaves passes without drafts to vLLM's sampler.

    vLLM's own verifies in each pass, if only no drafts. That takes time, and in the CPU build it
    ends the engine where all rows have a `top_k` and nothing else.
    """

    @wraps(forward)
    def sample(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling: Any) -> Any:
        if metadata.max_spec_len:
            return forward(self, metadata, draft_probs, logits, sampling)
        return self.sampler(logits=logits, sampling_metadata=sampling)

    return sample


def expands_rightly(function: Any) -> bool:
    """Returns whether a function does what `expand_batch_to_tokens` does, for floats too."""
    values, ends = torch.tensor([0.7, 0.5]), torch.tensor([3, 5], dtype=torch.int32)
    expected = expand_batch_to_tokens(values, ends, 5)
    return bool(torch.equal(function(values, ends, 5), expected))


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Returns each row's value once for each of its tokens [num_tokens].

    vLLM's kernel for the CPU writes values that are no integers into a copy, so that temperature,
    top-k and top-p of drafts are what was in the memory before.

    Args:
        x: A value of each row [num_rows].
        cu_num_tokens: Where each row's tokens end [num_rows].
        num_tokens: Of all rows.
        replace_from: A value to be replaced, if it differs from `replace_to`.
        replace_to: What replaces it.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    if replace_from != replace_to:
        x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return x.repeat_interleave(counts, output_size=num_tokens)
