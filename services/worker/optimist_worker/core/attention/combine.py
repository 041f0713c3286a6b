"""Puts together what programs of the attention kernel made of parts of a row's keys."""

import triton
import triton.language as tl


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
    if row_tile > 0:
        rows = tl.arange(0, row_tile)
        ends = tl.load(query_starts + 1 + rows, mask=rows < num_rows, other=2**62)
        row = tl.sum((ends <= token).to(tl.int32), 0)
        if tl.load(query_starts + row + 1) - tl.load(query_starts + row) > max_queries:
            return
    part = tl.arange(0, part_tile)
    index = index * num_parts + part
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
