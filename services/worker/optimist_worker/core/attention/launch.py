"""Attention over keys and values in blocks on a GPU: how its work is cut, and what is launched."""

import math
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from optimist_worker.core.attention.kernel import Variant, attend_parts, combine_parts
from optimist_worker.core.attention.paged_attention import AttentionBatch

MAX_PARTS = 32
"""Most parts of a row's keys. With 8 heads of keys, two programs per processor of an H200."""
MAX_PARTED_QUERIES = 128
"""Rows with more tokens, mostly chunks of prompts, occupy a GPU without cutting their keys."""

_STEP_BYTES = 32 * 1024
"""Keys and values of one step of the loop."""
_LARGE_SHARED_BYTES = 160 * 1024
"""Shared memory of one program that A100, H100 and H200 have, and others (99 KiB) do not."""


DECODE_PART, VERIFY_PART = 256, 512
"""Keys of a program for a row that fits into one, and for others of at most MAX_PARTED_QUERIES
tokens; more if a row has more than MAX_PARTS times as many."""
_PREFILL_STAGES = 3


class Tiling(NamedTuple):
    """A program's share: pairs of a token and a head of one group, times a part of the keys.

    Heights and parts are chosen by the number of a row's own tokens, never by the batch's, so that
    a row computes the same alone and in any batch.
    """

    decode_m: int
    """Pairs of a program for rows that fit into one: a token, or a short chain."""
    verify_m: int
    """Pairs of a program for other rows of at most MAX_PARTED_QUERIES tokens."""
    prefill_m: int
    """Pairs of a program for longer rows, whose keys are not cut."""
    block_n: int
    """Keys at a time."""
    num_warps: int
    """Of programs for rows whose keys are cut."""
    num_stages: int
    """Of the same. Blocks' numbers, then keys, then products: 3 have one step on its way, 5 two."""
    prefill_warps: int


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
    float32 use no tensor cores and hold their operands in registers: small tiles. Where shared
    memory is small, 128 queries of 256 numbers leave no room for keys.
    """
    is_half = itemsize < 4
    key_bytes = (tile_side(key_dim) + tile_side(value_dim)) * itemsize
    most = min(64, (_STEP_BYTES if is_half else _STEP_BYTES // 2) // key_bytes)
    is_wide = max(tile_side(key_dim), tile_side(value_dim)) > 128
    has_much = shared_bytes >= _LARGE_SHARED_BYTES
    prefill_m = 16 if not is_half else 128 if has_much or not is_wide else 64
    return Tiling(
        decode_m=tile_side(group),
        verify_m=max(64 if is_half else 16, tile_side(group)),
        prefill_m=max(prefill_m, tile_side(group)),
        block_n=max(16, 1 << (most.bit_length() - 1)) if most else 16,
        num_warps=8 if is_wide else 4,
        num_stages=5 if is_half and has_much else 3,
        prefill_warps=8 if is_half else 4,
    )


def tile_side(size: int) -> int:
    """Returns the least power of 2 that is at least `size` and, as products need, 16."""
    return max(16, 1 << (size - 1).bit_length())


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Lets every token of a batch attend to its row's keys, without waiting for the device.

    Launches follow from shapes, `max_num_queries` and `max_num_keys` alone, so that they can be
    captured in a CUDA graph. Which programs compute a row, and in which order they add, follows
    from its own numbers of tokens and keys: a row is bit for bit the same in any batch.

    Arguments and result are those of `paged_attention.attend_rows`.
    """
    num_heads, num_tokens = query.shape[1:3]
    num_kv_heads, key_dim = keys.shape[1:]
    value_dim, num_rows = values.shape[2], len(batch.num_computed_tokens)
    group = num_heads // num_kv_heads
    tiling = choose_tiling(group, key_dim, value_dim, query.itemsize, _shared_bytes(query.device))
    num_parts = _num_parts(batch.max_num_keys, window, tiling)
    # The kernel that puts parts together clears the padding; without it somebody has to.
    make = query.new_zeros if num_parts == 1 else query.new_empty
    output = make((1, num_tokens, num_heads, value_dim))
    if not num_rows or not num_tokens:
        return output.zero_()
    # Tokens of long rows have no parts. Rows that may have some take less room than all tokens if a
    # long one is among them.
    is_by_row = min(batch.max_num_queries, num_tokens // num_rows) > MAX_PARTED_QUERIES
    slots_per_row = MAX_PARTED_QUERIES if is_by_row else 0
    parts = _new_parts(output, num_parts, num_rows * slots_per_row or num_tokens)
    query = query if query.stride(3) == 1 else query.contiguous()
    has_tree = batch.ancestors is not None
    tensors = (
        *(query, keys, values, output, parts, batch.query_starts, batch.num_computed_tokens),
        *(batch.tree_starts, batch.positions, batch.ancestors if has_tree else batch.positions),
        *(batch.block_tables, query if sinks is None else sinks),
    )
    numbers = (num_rows, *_in_units_of_log_2(scale, softcap), window or 0)
    strides = (query.stride(1), query.stride(2), batch.block_tables.stride(0))
    most = min(batch.max_num_queries, MAX_PARTED_QUERIES)
    has_large = most > tiling.decode_m // group
    block_queries = (tiling.verify_m if has_large else tiling.decode_m) // group
    is_one_block = most <= block_queries
    short = Variant(
        group=group,
        key_dim=key_dim,
        value_dim=value_dim,
        key_tile=tile_side(key_dim),
        value_tile=tile_side(value_dim),
        block_size=batch.pool.block_size,
        block_n=tiling.block_n,
        has_tree=has_tree,
        has_window=window is not None,
        has_softcap=softcap is not None,
        has_sinks=sinks is not None,
        min_queries=1,
        max_queries=MAX_PARTED_QUERIES,
        small_m=tiling.decode_m,
        small_part=DECODE_PART,
        large_m=tiling.verify_m,
        large_part=VERIFY_PART,
        has_large=has_large,
        num_parts=num_parts,
        max_parts=MAX_PARTS,
        row_tile=0 if is_one_block else tile_side(num_rows),
        slots_per_row=slots_per_row if num_parts > 1 else 0,
    )
    num_blocks = num_rows if is_one_block else num_tokens // block_queries + num_rows
    launches = [(short, num_blocks, tiling.num_warps, tiling.num_stages)]
    row_tile = 0
    if batch.max_num_queries > MAX_PARTED_QUERIES:
        row_tile = tile_side(num_rows)
        long = replace(
            short,
            min_queries=MAX_PARTED_QUERIES + 1,
            max_queries=2**31 - 1,
            small_m=tiling.prefill_m,
            has_large=False,
            num_parts=1,
            row_tile=row_tile,
            slots_per_row=0,
        )
        num_blocks = num_tokens // (tiling.prefill_m // group) + num_rows
        launches.append((long, num_blocks, tiling.prefill_warps, _PREFILL_STAGES))
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        for variant, number, warps, stages in launches:
            grid, arguments = (number, num_kv_heads, variant.num_parts), (*tensors, *numbers)
            attend_parts[grid](*arguments, *strides, variant, num_warps=warps, num_stages=stages)
        if num_parts > 1:
            of_rows = (batch.query_starts, num_rows, value_dim, short.value_tile, num_parts)
            sizes = (row_tile, MAX_PARTED_QUERIES, slots_per_row)
            combine_parts[(num_tokens, num_heads)](output, parts, *of_rows, *sizes, num_warps=1)
    return output


def _num_parts(max_num_keys: int, window: int | None, tiling: Tiling) -> int:
    """Returns into how many parts the keys of any row may be cut."""
    if window is not None:
        # A row's first token sees a window of keys, its last one that many more; a tree may have
        # begun before the pass.
        reach = window + 2 * MAX_PARTED_QUERIES + tiling.block_n
        max_num_keys = min(max_num_keys, reach)
    return max(1, min(MAX_PARTS, -(-max_num_keys // DECODE_PART)))


def _new_parts(
    output: torch.Tensor, num_parts: int, num_slots: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Allocates weighted sums of values, highest scores and sums of weights of all parts."""
    if num_parts == 1:
        return output, output, output
    num_heads, value_dim = output.shape[2:]
    shape = (num_slots, num_heads, num_parts)
    maxima, sums = output.new_empty((2, *shape), dtype=torch.float32).unbind()
    return output.new_empty((*shape, value_dim), dtype=torch.float32), maxima, sums


@cache
def _shared_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return 0  # Triton's interpreter has no such limit, and no use for it.
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


def _in_units_of_log_2(scale: float, softcap: float | None) -> tuple[float, float]:
    """Returns the scale and the softcap as the kernel takes them."""
    if softcap is None:
        return scale * math.log2(math.e), 0.0
    return 2 * scale / softcap * math.log2(math.e), softcap * math.log2(math.e)
