"""The loop of the attention kernel: an online softmax over a range of keys."""

import triton
import triton.language as tl


@triton.jit
def attend_range(
    weighted,
    maximum,
    total,
    vectors,
    keys,
    values,
    positions,
    table,
    scale,
    softcap,
    window,
    query_start,
    num_computed,
    tree_start,
    place,
    position,
    ancestor,
    low,
    high,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    key_tile: tl.constexpr,
    value_tile: tl.constexpr,
    block_size: tl.constexpr,
    block_n: tl.constexpr,
    is_masked: tl.constexpr,
    has_tree: tl.constexpr,
    has_window: tl.constexpr,
    has_softcap: tl.constexpr,
):
    """Takes keys `low` to `high` into a running softmax, `block_n` at a time."""
    num_kv_heads = tl.num_programs(1)
    key_lane = tl.arange(0, key_tile)
    value_lane = tl.arange(0, value_tile)
    for start in range(low, high, block_n):
        key = start + tl.arange(0, block_n)
        is_key = key < high
        block = tl.load(table + key // block_size, mask=is_key, other=0).to(tl.int64)
        index = (block * block_size + key % block_size) * num_kv_heads
        columns = tl.load(
            keys + index[None, :] * key_dim + key_lane[:, None],
            mask=is_key[None, :] & (key_lane < key_dim)[:, None],
            other=0.0,
        )
        # IEEE: who serves float32 wants its 24 bits, and TF32 keeps 11 of them.
        scores = tl.dot(vectors, columns, input_precision="ieee") * scale
        if has_softcap:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), with the factor 2 / log 2 in the scale.
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if is_masked:
            visible = _visible(
                key, high, positions, window, query_start, num_computed, tree_start, place,
                position, ancestor, has_tree, has_window,
            )  # fmt: skip
            scores = tl.where(visible, scores, float("-inf"))
        highest = tl.maximum(maximum, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - finite[:, None])
        decay = tl.exp2(maximum - finite)
        total = total * decay + tl.sum(weights, 1)
        rows = tl.load(
            values + index[:, None] * value_dim + value_lane[None, :],
            mask=is_key[:, None] & (value_lane < value_dim)[None, :],
            other=0.0,
        )
        weighted = weighted * decay[:, None]
        weighted = tl.dot(weights.to(rows.dtype), rows, weighted, input_precision="ieee")
        maximum = highest
    return weighted, maximum, total


@triton.jit
def _visible(
    key,
    high,
    positions,
    window,
    query_start,
    num_computed,
    tree_start,
    place,
    position,
    ancestor,
    has_tree: tl.constexpr,
    has_window: tl.constexpr,
):
    """Returns which keys each token sees, `[block_m, block_n]`."""
    visible = (key[None, :] <= place[:, None]) & (key < high)[None, :]
    key_position = key
    if has_tree:
        node = key - tree_start
        bit = tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)
        is_above = (ancestor[:, None] >> bit[None, :]) & 1 == 1
        visible &= is_above | (ancestor == 0)[:, None] | (node < 0)[None, :]
    if has_window:
        if has_tree:
            is_new = (key >= num_computed) & (key < high)
            new = tl.load(positions + query_start + key - num_computed, mask=is_new, other=0)
            key_position = tl.where(is_new, new.to(tl.int32), key)
        visible &= key_position[None, :] > position[:, None] - window
    return visible
