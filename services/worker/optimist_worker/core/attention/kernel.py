"""Attention over keys and values in blocks as Triton kernels, for tokens of any number per row.

The keys of a row are cut into parts of a size that follows from the row alone; a program attends
to one part with an online softmax (FlashAttention-2, Dao 2023), and a second kernel puts the parts
together (Flash-Decoding, Dao et al. 2023). Scores are in units of log 2, so that exp2 serves.

Indices and positions are int32, addresses int64: a pool may have more than 2**31 elements.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from optimist_worker.core.attention.loop import attend_range

_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Variant:
    """What is uniform in a launch: compiled in, so that each holds no more than it needs."""

    group: int
    """Heads that share keys and values."""
    key_dim: int
    value_dim: int
    key_tile: int
    value_tile: int
    block_size: int
    block_n: int
    """Keys at a time."""
    has_tree: bool
    has_window: bool
    has_softcap: bool
    has_sinks: bool
    min_queries: int
    """Rows with fewer or more tokens than these two are left alone."""
    max_queries: int
    small_m: int
    """Pairs of a token and a head of one group in a program for a row that fits into one."""
    small_part: int
    """Keys of a program for such a row, if they are cut."""
    large_m: int
    """The same of other rows; used only if there may be any."""
    large_part: int
    has_large: bool
    num_parts: int
    max_parts: int
    row_tile: int
    """With 0 every row has one block of pairs; else a program looks its row up among so many."""
    slots_per_row: int
    """With 0 parts of a token lie at its own index, else at that in the row after so many of each
    row before."""


@triton.jit
def attend_parts(
    query,
    keys,
    values,
    output,
    parts,
    query_starts,
    num_computed_tokens,
    tree_starts,
    positions,
    ancestors,
    block_tables,
    sinks,
    num_rows,
    scale,
    softcap,
    window,
    query_head_stride,
    query_token_stride,
    table_stride,
    variant: tl.constexpr,
):
    """Attends with the tokens of rows of some lengths to one part of their keys.

    The grid is `[blocks of pairs, num_kv_heads, num_parts]`. A block is looked up among the rows:
    those before row r have at most `query_starts[r] // tokens of a block + r`.
    """
    block = tl.program_id(0)
    block_queries: tl.constexpr = (
        variant.large_m if variant.has_large else variant.small_m
    ) // variant.group
    row = block
    if variant.row_tile > 0:
        rows = tl.arange(0, variant.row_tile)
        starts = tl.load(query_starts + rows, mask=rows < num_rows, other=0)
        first_blocks = (starts // block_queries).to(tl.int32) + rows
        is_before = (first_blocks <= block) & (rows < num_rows)
        row = tl.sum(is_before.to(tl.int32), 0) - 1
        block -= tl.max(tl.where(is_before, first_blocks, 0), 0)
    else:
        block = 0
    query_start = tl.load(query_starts + row).to(tl.int32)
    num_queries = tl.load(query_starts + row + 1).to(tl.int32) - query_start
    if (num_queries < variant.min_queries) | (num_queries > variant.max_queries):
        return
    first_query = block * block_queries
    if first_query >= num_queries:
        return
    num_computed = tl.load(num_computed_tokens + row).to(tl.int32)
    tree_start = num_computed + num_queries
    if variant.has_tree:
        tree_start = tl.load(tree_starts + row).to(tl.int32)
    table = block_tables + row.to(tl.int64) * table_stride
    first_slot = query_start
    if variant.slots_per_row > 0:
        first_slot = row * variant.slots_per_row
    of_row = (table, positions, first_slot, query_start, num_queries, num_computed, tree_start)
    tensors = (query, query_head_stride, query_token_stride, keys, values, output, parts, ancestors)
    factors = (scale, softcap, window)
    if (not variant.has_large) or num_queries <= variant.small_m // variant.group:
        _attend_block(
            tensors,
            sinks,
            of_row,
            factors,
            first_query,
            variant.small_m,
            variant.small_part,
            variant,
        )
    else:
        _attend_block(
            tensors,
            sinks,
            of_row,
            factors,
            first_query,
            variant.large_m,
            variant.large_part,
            variant,
        )


@triton.jit
def _attend_block(
    tensors,
    sinks,
    of_row,
    factors,
    first_query,
    block_m: tl.constexpr,
    part_keys: tl.constexpr,
    variant: tl.constexpr,
):
    """Attends with `block_m` pairs of a token and a head of one group to one part of the keys."""
    query, head_stride, token_stride, keys, values, output, parts, ancestors = tensors
    _, positions, first_slot, query_start, num_queries, num_computed, tree_start = of_row
    kv_head, part, pair = tl.program_id(1), tl.program_id(2), tl.arange(0, block_m)
    within = first_query + pair // variant.group
    end_query = tl.minimum(first_query + block_m // variant.group, num_queries)
    is_query = within < end_query
    token = (query_start + within).to(tl.int64)
    head = kv_head * variant.group + pair % variant.group
    ancestor = token
    if variant.has_tree:
        ancestor = tl.load(ancestors + token, mask=is_query, other=0)
    index = num_computed + within
    position = index
    lowest = 0
    if variant.has_window:
        position = tl.load(positions + token, mask=is_query, other=2**31 - 1).to(tl.int32)
        lowest = tl.maximum(tl.min(position, 0) - factors[2] + 1, 0)
    low, high = _part_of_keys(of_row, factors[2], part_keys, variant)
    low = tl.maximum(low, lowest // variant.block_n * variant.block_n)
    high = tl.minimum(high, num_computed + end_query)
    slot = (first_slot + within).to(tl.int64) * (tl.num_programs(1) * variant.group) + head
    row_index = slot * variant.num_parts + part
    state = _begin(sinks, head, block_m, variant)
    if (low >= high) & (part > 0):
        # Nothing to see here: that much weighs nothing when parts are put together.
        tl.store(parts[1] + row_index, state[1], mask=is_query)
    else:
        # All tokens of the block see all keys before `full`.
        full = low
        if not variant.has_window:
            full = tl.minimum(num_computed + first_query + 1, high)
            if variant.has_tree:
                full = tl.minimum(full, tree_start)
            full = low + tl.maximum(full - low, 0) // variant.block_n * variant.block_n
        key_lane = tl.arange(0, variant.key_tile)
        vectors = tl.load(
            query + (token * token_stride + head * head_stride)[:, None] + key_lane[None, :],
            mask=is_query[:, None] & (key_lane < variant.key_dim)[None, :],
            other=0.0,
        )
        memory = (keys + kv_head * variant.key_dim, values + kv_head * variant.value_dim)
        queries = (vectors, index, position, ancestor)
        state = attend_range(state, queries, memory, of_row, factors, low, full, False, variant)
        state = attend_range(state, queries, memory, of_row, factors, full, high, True, variant)
        _store_part(output, parts, row_index, is_query, state, variant)


@triton.jit
def _begin(sinks, head, block_m: tl.constexpr, variant: tl.constexpr):
    """Returns weighted values, highest scores and sums of weights before any key."""
    value_tile: tl.constexpr = variant.value_tile
    weighted = tl.zeros([block_m, value_tile], tl.float32)
    maximum = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    if variant.has_sinks:
        # A sink is a score without a value: the first part begins as if it had seen it.
        is_first = tl.program_id(2) == 0
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        maximum = tl.where(is_first, sink, maximum)
        total = tl.where(is_first, 1.0, total)
    return weighted, maximum, total


@triton.jit
def _part_of_keys(of_row, window, part_keys: tl.constexpr, variant: tl.constexpr):
    """Returns the first key of the program's part of its row, and the first one after it."""
    _, _, _, _, num_queries, num_computed, tree_start = of_row
    low = 0
    high = num_computed + num_queries
    if variant.has_window:
        # No token of the row is at a position before these two.
        low = tl.maximum(tl.minimum(num_computed, tree_start) - window + 1, 0)
        low = low // variant.block_n * variant.block_n
    if variant.num_parts > 1:
        size = part_keys * tl.cdiv(high - low, part_keys * variant.max_parts)
        low += tl.program_id(2) * size
        high = tl.minimum(low + size, high)
    return low, high


@triton.jit
def _store_part(output, parts, row_index, is_query, state, variant: tl.constexpr):
    """Writes what a program computed: the output if its part is all there may be."""
    weighted, maximum, total = state
    value_lane = tl.arange(0, variant.value_tile)
    mask = is_query[:, None] & (value_lane < variant.value_dim)[None, :]
    at = row_index[:, None] * variant.value_dim + value_lane[None, :]
    if variant.num_parts == 1:
        mean = weighted / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(output + at, mean.to(output.dtype.element_ty), mask=mask)
    else:
        tl.store(parts[1] + row_index, maximum, mask=is_query)
        tl.store(parts[2] + row_index, total, mask=is_query)
        tl.store(parts[0] + at, weighted, mask=mask)


@triton.jit
def combine_parts(
    output,
    parts,
    query_starts,
    num_rows,
    value_dim: tl.constexpr,
    value_tile: tl.constexpr,
    num_parts: tl.constexpr,
    row_tile: tl.constexpr,
    max_queries: tl.constexpr,
    slots_per_row: tl.constexpr,
):
    """Puts the parts of one token and head together; the grid is `[num_tokens, num_heads]`.

    They are added one after the other, so that parts which a row does not have change nothing.
    Padding becomes 0. With `row_tile`, tokens of rows with more than `max_queries` are left alone.
    """
    part_outputs, part_maxima, part_sums = parts
    token = tl.program_id(0)
    index = token.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    value_lane = tl.arange(0, value_tile)
    is_value = value_lane < value_dim
    at = output + index * value_dim + value_lane
    if token >= tl.load(query_starts + num_rows):
        tl.store(at, tl.zeros([value_tile], output.dtype.element_ty), mask=is_value)
        return
    slot = token.to(tl.int64)
    if row_tile > 0:
        rows = tl.arange(0, row_tile)
        ends = tl.load(query_starts + 1 + rows, mask=rows < num_rows, other=2**62)
        row = tl.sum((ends <= token).to(tl.int32), 0)
        start = tl.load(query_starts + row)
        if tl.load(query_starts + row + 1) - start > max_queries:
            return
        if slots_per_row > 0:
            slot = row * slots_per_row + token - start
    first = (slot * tl.num_programs(1) + tl.program_id(1)) * num_parts
    maximum = tl.full([], float("-inf"), tl.float32)
    for part in tl.static_range(num_parts):
        maximum = tl.maximum(maximum, tl.load(part_maxima + first + part))
    weighted, total = tl.zeros([value_tile], tl.float32), tl.zeros([], tl.float32)
    for part in tl.static_range(num_parts):
        weight = tl.exp2(tl.load(part_maxima + first + part) - maximum)
        values = part_outputs + (first + part) * value_dim + value_lane
        # Parts that a row does not have were not written. The interpreter broadcasts numbers, but
        # not what is true of them.
        is_used = is_value & (tl.zeros([value_tile], tl.float32) + weight > 0)
        weighted += tl.load(values, mask=is_used, other=0.0) * weight
        total += tl.load(part_sums + first + part, mask=weight > 0, other=0.0) * weight
    tl.store(at, (weighted / total).to(output.dtype.element_ty), mask=is_value)
