"""Attention over keys and values in blocks as Triton kernels, for tokens of any number per row.

The keys of a row are cut into parts of a size that follows from the row alone; a program attends
to one part with an online softmax (FlashAttention-2, Dao 2023), and a second kernel puts the parts
together (Flash-Decoding, Dao et al. 2023). Scores are in units of log 2, so that exp2 serves.

What is uniform in a launch is a constant of the kernel, so that each variant holds no more than it
needs. Places and positions are int32, addresses int64: a pool may have more than 2**31 elements.
"""

import triton
import triton.language as tl

from optimist_worker.core.attention.loop import attend_range

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_parts(
    query,
    keys,
    values,
    output,
    part_outputs,
    part_maxima,
    part_sums,
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
    group: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    key_tile: tl.constexpr,
    value_tile: tl.constexpr,
    block_size: tl.constexpr,
    min_queries: tl.constexpr,
    max_queries: tl.constexpr,
    small_m: tl.constexpr,
    small_part: tl.constexpr,
    large_m: tl.constexpr,
    large_part: tl.constexpr,
    block_n: tl.constexpr,
    num_parts: tl.constexpr,
    max_parts: tl.constexpr,
    row_tile: tl.constexpr,
    slots_per_row: tl.constexpr,
    has_large: tl.constexpr,
    has_tree: tl.constexpr,
    has_window: tl.constexpr,
    has_softcap: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Attends with `min_queries` to `max_queries` tokens of every row to one part of its keys.

    The grid is `[blocks of tokens, num_kv_heads, num_parts]`. Rows of at most `small_m // group`
    tokens are one small block; other rows, if there may be any (`has_large`), several large ones.
    With `row_tile` 0 every row has one block, else a block is looked up among the rows: those
    before row r have at most `query_starts[r] // tokens of a block + r`. Parts of a token lie at
    its own index, or with `slots_per_row` at its index in the row, after that many of each row
    before.
    """
    block = tl.program_id(0)
    block_queries: tl.constexpr = (large_m if has_large else small_m) // group
    row = block
    if row_tile > 0:
        rows = tl.arange(0, row_tile)
        starts = tl.load(query_starts + rows, mask=rows < num_rows, other=0)
        first_blocks = (starts // block_queries).to(tl.int32) + rows
        is_before = (first_blocks <= block) & (rows < num_rows)
        row = tl.sum(is_before.to(tl.int32), 0) - 1
        block -= tl.max(tl.where(is_before, first_blocks, 0), 0)
    else:
        block = 0
    query_start = tl.load(query_starts + row).to(tl.int32)
    num_queries = tl.load(query_starts + row + 1).to(tl.int32) - query_start
    if (num_queries < min_queries) | (num_queries > max_queries):
        return
    first_query = block * block_queries
    if first_query >= num_queries:
        return
    num_computed = tl.load(num_computed_tokens + row).to(tl.int32)
    tree_start = num_computed + num_queries
    if has_tree:
        tree_start = tl.load(tree_starts + row).to(tl.int32)
    table = block_tables + row.to(tl.int64) * table_stride
    first_slot = query_start
    if slots_per_row > 0:
        first_slot = row * slots_per_row
    if (not has_large) or num_queries <= small_m // group:
        _attend_block(
            query, keys, values, output, part_outputs, part_maxima, part_sums, positions,
            ancestors, table, sinks, scale, softcap, window, query_head_stride,
            query_token_stride, query_start, first_slot, num_queries, num_computed, tree_start,
            first_query,
            group, key_dim, value_dim, key_tile, value_tile, block_size, small_m, small_part,
            block_n, num_parts, max_parts, has_tree, has_window, has_softcap, has_sinks,
        )  # fmt: skip
    else:
        _attend_block(
            query, keys, values, output, part_outputs, part_maxima, part_sums, positions,
            ancestors, table, sinks, scale, softcap, window, query_head_stride,
            query_token_stride, query_start, first_slot, num_queries, num_computed, tree_start,
            first_query,
            group, key_dim, value_dim, key_tile, value_tile, block_size, large_m, large_part,
            block_n, num_parts, max_parts, has_tree, has_window, has_softcap, has_sinks,
        )  # fmt: skip


@triton.jit
def _attend_block(
    query,
    keys,
    values,
    output,
    part_outputs,
    part_maxima,
    part_sums,
    positions,
    ancestors,
    table,
    sinks,
    scale,
    softcap,
    window,
    query_head_stride,
    query_token_stride,
    query_start,
    first_slot,
    num_queries,
    num_computed,
    tree_start,
    first_query,
    group: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    key_tile: tl.constexpr,
    value_tile: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    part_keys: tl.constexpr,
    block_n: tl.constexpr,
    num_parts: tl.constexpr,
    max_parts: tl.constexpr,
    has_tree: tl.constexpr,
    has_window: tl.constexpr,
    has_softcap: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Attends with `block_m` pairs of a token and a head of one group to one part of the keys."""
    kv_head, part = tl.program_id(1), tl.program_id(2)
    pair = tl.arange(0, block_m)
    within = first_query + pair // group
    end_query = tl.minimum(first_query + block_m // group, num_queries)
    is_query = within < end_query
    token = (query_start + within).to(tl.int64)
    head = kv_head * group + pair % group
    place = num_computed + within
    ancestor = token
    if has_tree:
        ancestor = tl.load(ancestors + token, mask=is_query, other=0)
    position = place
    lowest = 0
    if has_window:
        position = tl.load(positions + token, mask=is_query, other=2**31 - 1).to(tl.int32)
        lowest = tl.maximum(tl.min(position, 0) - window + 1, 0)
    low, high = _part_of_keys(
        num_queries, num_computed, tree_start, window, part_keys, block_n, num_parts, max_parts,
        has_window,
    )  # fmt: skip
    low = tl.maximum(low, lowest // block_n * block_n)
    high = tl.minimum(high, num_computed + end_query)
    slot = (first_slot + within).to(tl.int64)
    row_index = (slot * (tl.num_programs(1) * group) + head) * num_parts + part
    maximum, total = _begin(sinks, head, block_m, has_sinks)
    if (low >= high) & (part > 0):
        # Nothing to see here: that much weighs nothing when parts are put together.
        tl.store(part_maxima + row_index, maximum, mask=is_query)
    else:
        # All tokens of the block see all keys before `full`.
        full = low
        if not has_window:
            full = tl.minimum(num_computed + first_query + 1, high)
            if has_tree:
                full = tl.minimum(full, tree_start)
            full = low + tl.maximum(full - low, 0) // block_n * block_n
        key_lane = tl.arange(0, key_tile)
        vectors = tl.load(
            query
            + (token * query_token_stride + head * query_head_stride)[:, None]
            + key_lane[None, :],
            mask=is_query[:, None] & (key_lane < key_dim)[None, :],
            other=0.0,
        )
        head_keys = keys + kv_head * key_dim
        head_values = values + kv_head * value_dim
        weighted = tl.zeros([block_m, value_tile], tl.float32)
        weighted, maximum, total = attend_range(
            weighted, maximum, total, vectors, head_keys, head_values, positions, table, scale,
            softcap, window, query_start, num_computed, tree_start, place, position, ancestor,
            low, full, key_dim, value_dim, key_tile, value_tile, block_size, block_n, False,
            has_tree, has_window, has_softcap,
        )  # fmt: skip
        weighted, maximum, total = attend_range(
            weighted, maximum, total, vectors, head_keys, head_values, positions, table, scale,
            softcap, window, query_start, num_computed, tree_start, place, position, ancestor,
            full, high, key_dim, value_dim, key_tile, value_tile, block_size, block_n, True,
            has_tree, has_window, has_softcap,
        )  # fmt: skip
        _store_part(
            output, part_outputs, part_maxima, part_sums, row_index, is_query, weighted, maximum,
            total, value_dim, value_tile, num_parts,
        )  # fmt: skip


@triton.jit
def _begin(sinks, head, block_m: tl.constexpr, has_sinks: tl.constexpr):
    """Returns the highest score and the sum of weights before any key, `[block_m]` each."""
    maximum = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    if has_sinks:
        # A sink is a score without a value: the first part begins as if it had seen it.
        is_first = tl.program_id(2) == 0
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        maximum = tl.where(is_first, sink, maximum)
        total = tl.where(is_first, 1.0, total)
    return maximum, total


@triton.jit
def _part_of_keys(
    num_queries,
    num_computed,
    tree_start,
    window,
    part_keys: tl.constexpr,
    block_n: tl.constexpr,
    num_parts: tl.constexpr,
    max_parts: tl.constexpr,
    has_window: tl.constexpr,
):
    """Returns the first key of the program's part of its row, and the first one after it."""
    low = 0
    high = num_computed + num_queries
    if has_window:
        # No token of the row is at a position before these two.
        low = tl.maximum(tl.minimum(num_computed, tree_start) - window + 1, 0)
        low = low // block_n * block_n
    if num_parts > 1:
        size = part_keys * tl.cdiv(high - low, part_keys * max_parts)
        low += tl.program_id(2) * size
        high = tl.minimum(low + size, high)
    return low, high


@triton.jit
def _store_part(
    output,
    part_outputs,
    part_maxima,
    part_sums,
    row_index,
    is_query,
    weighted,
    maximum,
    total,
    value_dim: tl.constexpr,
    value_tile: tl.constexpr,
    num_parts: tl.constexpr,
):
    """Writes what a program computed: the output if its part is all there may be."""
    value_lane = tl.arange(0, value_tile)
    mask = is_query[:, None] & (value_lane < value_dim)[None, :]
    at = row_index[:, None] * value_dim + value_lane[None, :]
    if num_parts == 1:
        mean = weighted / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(output + at, mean.to(output.dtype.element_ty), mask=mask)
    else:
        tl.store(part_maxima + row_index, maximum, mask=is_query)
        tl.store(part_sums + row_index, total, mask=is_query)
        tl.store(part_outputs + at, weighted, mask=mask)


@triton.jit
def combine_parts(
    output,
    part_outputs,
    part_maxima,
    part_sums,
    query_starts,
    num_rows,
    value_dim: tl.constexpr,
    value_tile: tl.constexpr,
    num_parts: tl.constexpr,
    part_tile: tl.constexpr,
    row_tile: tl.constexpr,
    max_queries: tl.constexpr,
    slots_per_row: tl.constexpr,
):
    """Puts the parts of one token and head together; the grid is `[num_tokens, num_heads]`.

    `part_tile` is the same in every launch, so that sums are taken in the same order. Padding
    becomes 0. With `row_tile`, tokens of rows with more than `max_queries` are left alone.
    """
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
    part = tl.arange(0, part_tile)
    index = (slot * tl.num_programs(1) + tl.program_id(1)) * num_parts + part
    maxima = tl.load(part_maxima + index, mask=part < num_parts, other=float("-inf"))
    weights = tl.exp2(maxima - tl.max(maxima, 0))
    is_used = weights > 0
    sums = tl.load(part_sums + index, mask=is_used, other=0.0)
    means = tl.load(
        part_outputs + index[:, None] * value_dim + value_lane[None, :],
        mask=is_used[:, None] & is_value[None, :],
        other=0.0,
    )
    mean = tl.sum(means * weights[:, None], 0) / tl.sum(sums * weights, 0)
    tl.store(at, mean.to(output.dtype.element_ty), mask=is_value)
