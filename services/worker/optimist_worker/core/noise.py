"""Gumbel noise that depends on nothing but (seed, position, token).

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011): key = the seed's low and high 32 bits, counter = (token // 4, position, 0, 0), and word
token % 4 of the block is the token's. Because it is counter-based, the noise is the same in every
batch, after every retry and on every machine.
"""

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Returns four words per counter, each in [0, 2**32) as int64.

    Args:
        counter: Four int64 tensors of one shape (or broadcastable) with values in [0, 2**32).
        key: Two numbers in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # The product of two 32-bit words needs all 64 bits; int64 wraps and keeps every bit.
        low_high0, low_high1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((low_high1 >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((low_high0 >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = low_high1 & _MASK, low_high0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: int, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Returns standard Gumbel noise, float64 `[num_positions, vocab_size]`.

    Args:
        seed: Any int64; its bits are the key.
        positions: Sequence positions of the tokens to be chosen, int64 `[num_positions]`.
        vocab_size: Number of tokens.
    """
    device = positions.device
    blocks = torch.arange(-(-vocab_size // 4), device=device)[None, :]
    rows = (positions & _MASK)[:, None]
    zero = torch.zeros((1, 1), dtype=torch.int64, device=device)
    words = philox((blocks, rows, zero, zero), (seed & _MASK, (seed >> 32) & _MASK))
    uniform = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size].double()
    # The half keeps the number off both 0 and 1, where the noise would be infinite.
    uniform.add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()
