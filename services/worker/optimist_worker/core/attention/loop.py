"""The loop of the attention kernel: an online softmax over a range of keys."""

import triton
import triton.language as tl


@triton.jit
def attend_range(
    state,
    queries,
    memory,
    of_row,
    factors,
    low,
    high,
    is_masked: tl.constexpr,
    variant: tl.constexpr,
):
    """Takes keys `low` to `high` into a running softmax, `block_n` at a time.

    `state` is weighted values, highest score and sum of weights of each query so far; `queries`
    vectors, indices, positions and ancestors; `memory` keys and values of the head; `of_row` the
    blocks, positions of the pass, first slot for parts, first token in the pass, number of tokens,
    keys before them, start of the tree; `factors` scale, softcap and window. With `is_masked` a
    query may not see some of the keys.
    """
    weighted, maximum, total = state
    keys, values = memory
    scale, softcap, window = factors
    num_kv_heads = tl.num_programs(1)
    key_lane = tl.arange(0, variant.key_tile)
    value_lane = tl.arange(0, variant.value_tile)
    for start in range(low, high, variant.block_n):
        key = start + tl.arange(0, variant.block_n)
        is_key = key < high
        block = tl.load(of_row[0] + key // variant.block_size, mask=is_key, other=0).to(tl.int64)
        index = (block * variant.block_size + key % variant.block_size) * num_kv_heads
        columns = tl.load(
            keys + index[None, :] * variant.key_dim + key_lane[:, None],
            mask=is_key[None, :] & (key_lane < variant.key_dim)[:, None],
            other=0.0,
        )
        # IEEE: who serves float32 wants its 24 bits, and TF32 keeps 11 of them.
        scores = tl.dot(queries[0], columns, input_precision="ieee") * scale
        if variant.has_softcap:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), with the factor 2 / log 2 in the scale.
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if is_masked:
            visible = _visible(key, high, queries, of_row, window, variant)
            scores = tl.where(visible, scores, float("-inf"))
        highest = tl.maximum(maximum, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - finite[:, None])
        decay = tl.exp2(maximum - finite)
        total = total * decay + tl.sum(weights, 1)
        rows = tl.load(
            values + index[:, None] * variant.value_dim + value_lane[None, :],
            mask=is_key[:, None] & (value_lane < variant.value_dim)[None, :],
            other=0.0,
        )
        weighted = weighted * decay[:, None]
        weighted = tl.dot(weights.to(rows.dtype), rows, weighted, input_precision="ieee")
        maximum = highest
    return weighted, maximum, total


@triton.jit
def _visible(key, high, queries, of_row, window, variant: tl.constexpr):
    """Returns which keys each token sees, `[block_m, block_n]`."""
    _, index, position, ancestor = queries
    _, positions, _, query_start, _, num_computed, tree_start = of_row
    visible = (key[None, :] <= index[:, None]) & (key < high)[None, :]
    key_position = key
    if variant.has_tree:
        node = key - tree_start
        bit = tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)
        is_above = (ancestor[:, None] >> bit[None, :]) & 1 == 1
        visible &= is_above | (ancestor == 0)[:, None] | (node < 0)[None, :]
    if variant.has_window:
        if variant.has_tree:
            is_new = (key >= num_computed) & (key < high)
            new = tl.load(positions + query_start + key - num_computed, mask=is_new, other=0)
            key_position = tl.where(is_new, new.to(tl.int32), key)
        visible &= key_position[None, :] > position[:, None] - window
    return visible
