"""Faults of vLLM's CPU build that drafts uncover: each is tried, and mended if it is there."""

from typing import Any

import torch


def apply() -> None:
    """Mends what is wrong in this process, where the model runs on a CPU.

    Raises:
        RuntimeError: It is wrong in a way that is not known.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

    if not expands_rightly(rejection_sampler.expand_batch_to_tokens):
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    if not takes_no_rows(topk_topp_sampler.apply_top_k_only):
        topk_topp_sampler.apply_top_k_only = _skipping_no_rows(topk_topp_sampler.apply_top_k_only)


def expands_rightly(function: Any) -> bool:
    """Tells whether a function does what `expand_batch_to_tokens` does, for floats too."""
    values, ends = torch.tensor([0.7, 0.5]), torch.tensor([3, 5], dtype=torch.int32)
    expected = expand_batch_to_tokens(values, ends, 5)
    return bool(torch.equal(function(values, ends, 5), expected))


def takes_no_rows(function: Any) -> bool:
    """Tells whether a function that keeps the k largest logits of each row does so for none."""
    try:
        function(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    except (RuntimeError, IndexError):
        return False
    return True


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


def _skipping_no_rows(function: Any) -> Any:
    """Returns a function that does not look for the largest k of no rows, as vLLM's does."""

    def apply_top_k_only(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(logits, k) if len(logits) else logits
        return result

    return apply_top_k_only
