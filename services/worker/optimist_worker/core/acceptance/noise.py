"""Gumbel noise that depends on nothing but (seed, stream, position, token).

Philox4x32 with 7 rounds, the fewest that pass BigCrush, of Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3" (SC 2011). The key is the seed's low and high 32 bits. With
B = ceil(vocab_size / 4), the token's noise is word token // B of the counter (token % B, position,
stream, 0). Because it is counter-based, it is the same in every batch and every retry.

On the CPU numpy computes it, which takes a third of the time that torch does at sizes like these.
"""

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 7
_CACHED_SIZE = 2**16
"""Numbers drawn at once on the CPU, so that they stay in its cache."""

HostArray = npt.NDArray[np.int64]
Array = TypeVar("Array", torch.Tensor, HostArray)


class Stream(IntEnum):
    """What random numbers are for; each use has its own, so that no two depend on each other."""

    TARGET = 0
    """The target's choice under the coupled rule, and its drafters' guesses of it."""
    DRAFT = 1
    """The drafters' own draws under rejection."""
    ACCEPTANCE = 2
    """Whether a draft is accepted under rejection."""
    RESIDUAL = 3
    """The token after the last accepted draft under rejection."""


def philox(
    counter: tuple[Array, Array, Array, Array], key: tuple[Array, Array] | tuple[int, int]
) -> tuple[Array, Array, Array, Array]:
    """Returns four words in [0, 2**32) per counter, as int64.

    The four parts of the counter and the two of the key are words too, and broadcast to one shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # The product of two 32-bit words needs all 64 bits; int64 wraps and keeps every bit.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((product0 >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = product1 & _MASK, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def gumbel(
    seed: int | torch.Tensor,
    positions: torch.Tensor,
    vocab_size: int,
    stream: Stream = Stream.TARGET,
) -> torch.Tensor:
    """Returns standard Gumbel noise, float64 `[num_positions, vocab_size]`.

    Positions are those of the tokens to be chosen, int64; the bits of the seed, any int64 for all
    or one per position, are the key.
    """
    seeds = seed if isinstance(seed, torch.Tensor) else torch.full_like(positions, seed)
    num_blocks = -(-vocab_size // 4)
    if positions.device.type == "cpu":
        noise = torch.from_numpy(_host_gumbel(seeds.numpy(), positions.numpy(), num_blocks, stream))
    else:
        blocks = torch.arange(num_blocks, device=positions.device)[None, :]
        words = torch.stack(_draw(seeds, positions, blocks, stream), 1).double()
        noise = _to_unit(words).log_().neg_().log_().neg_()
    return noise.flatten(1)[:, :vocab_size]


def uniform(
    seeds: torch.Tensor, positions: torch.Tensor, numbers: torch.Tensor, stream: Stream
) -> torch.Tensor:
    """Returns uniform random numbers strictly between 0 and 1, float64 `[n, m]`.

    They are those of `numbers`, in [0, 2**32), of each seed and sequence position, int64 `[n]`.
    """
    return _to_unit(_draw(seeds, positions, numbers, stream)[0].double())


def _host_gumbel(
    seeds: HostArray, positions: HostArray, num_blocks: int, stream: Stream
) -> npt.NDArray[np.float64]:
    """Returns noise `[num_positions, 4, num_blocks]`."""
    noise = np.empty((len(positions), 4, num_blocks))
    blocks = np.arange(num_blocks)[None, :]
    at_once = max(1, _CACHED_SIZE // (4 * num_blocks))
    for first in range(0, len(positions), at_once):
        rows = slice(first, first + at_once)
        part = noise[rows]
        for number, word in enumerate(_draw(seeds[rows], positions[rows], blocks, stream)):
            part[:, number] = word
        part += 0.5
        part *= 2.0**-32
        np.negative(np.log(part, out=part), out=part)
        np.negative(np.log(part, out=part), out=part)
    return noise


def _draw(
    seeds: Array, positions: Array, blocks: Array, stream: Stream
) -> tuple[Array, Array, Array, Array]:
    """Draws the words of counters (blocks, positions, stream, 0), `[num_positions, m]` each."""
    zero = blocks[:1, :1] * 0
    counter = (blocks, (positions & _MASK)[:, None], zero + int(stream), zero)
    return philox(counter, ((seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None]))


def _to_unit(words: torch.Tensor) -> torch.Tensor:
    """Maps words, as float64, into (0, 1) in place; the half keeps them off both ends."""
    return words.add_(0.5).mul_(2.0**-32)
