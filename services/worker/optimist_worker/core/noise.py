"""Gumbel noise that depends on nothing but (seed, position, token).

Philox4x32 with 7 rounds, the fewest that pass BigCrush, of Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3" (SC 2011). The key is the seed's low and high 32 bits. With
B = ceil(vocab_size / 4), the token's noise is word token // B of the counter (token % B, position,
0, 0). Because it is counter-based, it is the same in every batch, retry and place.
"""

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 7

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Returns four words per counter, each in [0, 2**32) as int64.

    Args:
        counter: Four int64 tensors, broadcastable to one shape, with values in [0, 2**32).
        key: Two numbers in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # The product of two 32-bit words needs all 64 bits; int64 wraps and keeps every bit.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32).bitwise_and_(_MASK) ^ c1).bitwise_xor_(k0)
        c2 = ((product0 >> 32).bitwise_and_(_MASK) ^ c3).bitwise_xor_(k1)
        c1, c3 = product1.bitwise_and_(_MASK), product0.bitwise_and_(_MASK)
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
    num_blocks = -(-vocab_size // 4)
    blocks = torch.arange(num_blocks, device=device)[None, :]
    zero = torch.zeros((1, 1), dtype=torch.int64, device=device)
    key = (seed & _MASK, (seed >> 32) & _MASK)
    words = philox((blocks, (positions & _MASK)[:, None], zero, zero), key)
    uniform = torch.empty((len(positions), 4, num_blocks), dtype=torch.float64, device=device)
    for number, word in enumerate(words):
        uniform[:, number] = word
    # The half keeps the number off both 0 and 1, where the noise would be infinite.
    noise = uniform.add_(0.5).mul_(2.0**-32).log_().neg_().log_().neg_()
    return noise.flatten(1)[:, :vocab_size]
