"""How the attention kernel cuts its work, by the shape of a layer."""

from dataclasses import dataclass
from functools import lru_cache

MAX_PARTS = 32
"""Most parts of a row's keys. With 8 heads of keys, two programs per processor of an H200."""
MAX_PARTED_QUERIES = 64
"""Rows with more tokens occupy many processors without cutting their keys into parts."""

_STEP_BYTES = 32 * 1024
"""Keys and values of one step of the loop."""
_LARGE_SHARED_BYTES = 160 * 1024
"""Shared memory of one program that A100, H100 and H200 have, and others (99 KiB) do not."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """A program's share: pairs of a token and a head of one group, times a part of the keys.

    Heights and parts are chosen by the number of a row's own tokens, never by the batch's, so that
    a row computes the same alone and in any batch.
    """

    decode_m: int
    """Pairs of a program for rows that fit into one: a token, or a short chain."""
    decode_part: int
    """Keys of a program for such rows; more if a row has more than MAX_PARTS times as many."""
    verify_m: int
    """Pairs of a program for other rows of at most MAX_PARTED_QUERIES tokens."""
    verify_part: int
    """Keys of a program for such rows."""
    prefill_m: int
    """Pairs of a program for longer rows, whose keys are not cut."""
    block_n: int
    """Keys at a time."""
    num_warps: int
    """Of programs for rows whose keys are cut."""
    num_stages: int
    """Of the same. Blocks' numbers, then keys, then products: 3 have one step on its way, 5 two."""
    prefill_warps: int
    prefill_stages: int


@lru_cache
def choose_tiling(
    group: int, key_dim: int, value_dim: int, itemsize: int, shared_bytes: int
) -> Tiling:
    """Chooses how to cut the work, for Hopper first.

    Decoding is bound by memory: there are programs for all processors at batch 1 from contexts
    of a few thousand tokens, and two programs with 64 KiB on its way each fit into the shared
    memory of one. 16 and 64 pairs are the least of the synchronous and the asynchronous product of
    tensor cores. A part writes its result in float32: with 64 pairs that is an eighth of the bytes
    of 512 keys of 128 bfloat16 numbers, which is why higher tiles get larger parts. Products of
    float32 use no tensor cores and hold their operands in registers: small tiles.

    Args:
        group: Heads that share keys and values.
        key_dim: Of one head.
        value_dim: Of one head.
        itemsize: Bytes of a number.
        shared_bytes: Shared memory that one program may have.
    """
    is_half = itemsize < 4
    key_bytes = (tile_side(key_dim) + tile_side(value_dim)) * itemsize
    most = min(64, (_STEP_BYTES if is_half else _STEP_BYTES // 2) // key_bytes)
    is_wide = max(tile_side(key_dim), tile_side(value_dim)) > 128
    return Tiling(
        decode_m=tile_side(group),
        decode_part=256,
        verify_m=max(64 if is_half else 16, tile_side(group)),
        verify_part=512,
        prefill_m=max(128 if is_half else 16, tile_side(group)),
        block_n=max(16, 1 << (most.bit_length() - 1)) if most else 16,
        num_warps=8 if is_wide else 4,
        num_stages=5 if is_half and shared_bytes >= _LARGE_SHARED_BYTES else 3,
        prefill_warps=8 if is_half else 4,
        prefill_stages=3,
    )


def tile_side(size: int) -> int:
    """Returns the least power of 2 that is at least `size` and, as products need, 16."""
    return max(16, 1 << (size - 1).bit_length())
