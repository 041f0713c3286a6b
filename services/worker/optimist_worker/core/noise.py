"""Gumbel noise that depends on nothing but (seed, stream, position, token).

Philox4x32 with 7 rounds, the fewest that pass BigCrush, of Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3" (SC 2011). The key is the seed's low and high 32 bits. With
B = ceil(vocab_size / 4), the token's noise is word token // B of the counter (token % B, position,
stream, 0). Because it is counter-based, it is the same in every batch, retry and place.
"""

from enum import IntEnum

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 7

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Key = tuple[int, int] | tuple[torch.Tensor, torch.Tensor]


class Stream(IntEnum):
    """What random numbers are for; each use has its own, so that no two depend on each other."""

    TARGET = 0
    """The target's choice under the coupled rule, and its drafters' guesses of it."""
    DRAFT = 1
    """The drafters' own draws under rejection."""
    ACCEPTANCE = 2
    """Whether a draft is accepted under rejection."""
    RESIDUAL = 3
    """The token behind the last accepted draft under rejection."""


def philox(counter: Words, key: Key) -> Words:
    """Returns four words per counter, each in [0, 2**32) as int64.

    Args:
        counter: Four int64 tensors, broadcastable to one shape, with values in [0, 2**32).
        key: Two numbers in [0, 2**32), or int64 tensors of such that broadcast to that shape.
    """
    c0, c1, c2, c3 = counter
    k0: int | torch.Tensor = key[0]
    k1: int | torch.Tensor = key[1]
    for _ in range(_NUM_ROUNDS):
        # The product of two 32-bit words needs all 64 bits; int64 wraps and keeps every bit.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (product1 >> 32).bitwise_and_(_MASK) ^ c1 ^ k0
        c2 = (product0 >> 32).bitwise_and_(_MASK) ^ c3 ^ k1
        c1, c3 = product1.bitwise_and_(_MASK), product0.bitwise_and_(_MASK)
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def gumbel(
    seed: int | torch.Tensor,
    positions: torch.Tensor,
    vocab_size: int,
    stream: Stream = Stream.TARGET,
) -> torch.Tensor:
    """Returns standard Gumbel noise, float64 `[num_positions, vocab_size]`.

    Args:
        seed: Any int64, or one per position, int64 `[num_positions]`; its bits are the key.
        positions: Sequence positions of the tokens to be chosen, int64 `[num_positions]`.
        vocab_size: Number of tokens.
        stream: What the noise is for.
    """
    device = positions.device
    num_blocks = -(-vocab_size // 4)
    blocks = torch.arange(num_blocks, device=device)[None, :]
    words = _draw(seed, blocks, positions, stream)
    uniform = torch.empty((len(positions), 4, num_blocks), dtype=torch.float64, device=device)
    for number, word in enumerate(words):
        uniform[:, number] = word
    noise = _to_unit(uniform).log_().neg_().log_().neg_()
    return noise.flatten(1)[:, :vocab_size]


def uniform(
    seeds: torch.Tensor, positions: torch.Tensor, numbers: torch.Tensor, stream: Stream
) -> torch.Tensor:
    """Returns uniform random numbers strictly between 0 and 1, float64 `[n, m]`.

    Args:
        seeds: Int64 `[n]`.
        positions: Sequence positions, int64 `[n]`.
        numbers: Which of the numbers of its seed and position, in [0, 2**32), int64 `[n, m]`.
        stream: What the numbers are for.
    """
    return _to_unit(_draw(seeds, numbers, positions, stream)[0].double())


def _draw(
    seed: int | torch.Tensor, blocks: torch.Tensor, positions: torch.Tensor, stream: Stream
) -> Words:
    """Draws the words of counters (blocks, positions, stream, 0), each `[num_positions, m]`."""
    key: Key
    if isinstance(seed, torch.Tensor):
        key = ((seed & _MASK)[:, None], ((seed >> 32) & _MASK)[:, None])
    else:
        key = (seed & _MASK, (seed >> 32) & _MASK)
    zero = torch.zeros((1, 1), dtype=torch.int64, device=positions.device)
    return philox((blocks, (positions & _MASK)[:, None], zero + int(stream), zero), key)


def _to_unit(words: torch.Tensor) -> torch.Tensor:
    """Maps words, as float64, into (0, 1) in place; the half keeps them off both ends."""
    return words.add_(0.5).mul_(2.0**-32)
