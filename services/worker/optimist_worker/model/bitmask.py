"""Masks of the vocabulary, a bit per token."""

import torch


def unpack_bitmask(packed: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Turns bits into booleans on the device of the bits.

    Args:
        packed: int32 `[num_nodes, ceil(vocab_size / 32)]`, bit i of word w for token 32 * w + i.
        vocab_size: Number of tokens.

    Returns:
        bool `[num_nodes, vocab_size]`.
    """
    bits = torch.arange(32, dtype=torch.int32, device=packed.device)
    unpacked = (packed[:, :, None] >> bits) & 1
    return unpacked.reshape(packed.shape[0], -1)[:, :vocab_size].bool()
