"""Lookups of a step's rows in one launch, a program for each."""

import torch
import triton
import triton.language as tl

from optimist_common.lookup import LONGEST_MATCH, MATCH_AT_START, REACH
from optimist_worker.core.lookup import NO_CURSOR, Found, Looking, Predictions

_TILE = 2048


def look_up(
    token_ids: torch.Tensor, rows: Looking, cursors: torch.Tensor, predictions: Predictions
) -> Found:
    """Is `lookup.look_up`; what comes after the drafts of a row is 0."""
    number, width = len(rows.slots), rows.width
    found = rows.slots.new_empty((3, number))
    following = rows.slots.new_empty((number, width))
    with torch.cuda.device_of(token_ids):
        look_up_row[(number,)](
            rows.slots,
            rows.columns.num_tokens,
            rows.columns.num_prompt_tokens,
            rows.limits,
            token_ids,
            predictions.token_ids,
            cursors,
            predictions.cursors,
            predictions.lengths,
            found,
            following,
            token_ids.shape[1],
            predictions.token_ids.shape[1],
            width,
            triton.next_power_of_2(width),
            _TILE,
            LONGEST_MATCH,
            REACH,
            MATCH_AT_START,
            NO_CURSOR,
            num_warps=8,
        )
    num_matched, num_tokens, positions = found
    return Found(num_matched, num_tokens, positions, following)


@triton.jit
def look_up_row(
    slots,
    lengths,
    num_prompt_tokens,
    limits,
    token_ids,
    predicted_ids,
    cursors,
    predicted_cursors,
    predicted_lengths,
    found,
    following,
    max_length,
    max_predicted,
    width,
    width_tile: tl.constexpr,
    tile: tl.constexpr,
    longest: tl.constexpr,
    reach: tl.constexpr,
    matched_at_start: tl.constexpr,
    no_cursor: tl.constexpr,
):
    """Looks up where one row goes on; the grid is `[num_rows]`."""
    row, num_rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    slot, length = tl.load(slots + row), tl.load(lengths + row)
    limit, end = tl.load(limits + row), tl.load(predicted_lengths + slot)
    text, predicted = token_ids + slot * max_length, predicted_ids + slot * max_predicted
    cursor = tl.maximum(tl.load(cursors + slot) + length, -1)
    index, matched = _match(text, length, text, length, length * 0, length, cursor, tile, longest)
    cursor = tl.maximum(tl.load(predicted_cursors + slot) + length, -1)
    first, stop = cursor - reach, tl.minimum(cursor + reach, end)
    other, num = _match(text, length, predicted, end, first, stop, cursor, tile, longest)
    # An output begins as its prediction does, perhaps.
    begins = (length == tl.load(num_prompt_tokens + row)) & (end > 0)
    other, num = tl.where(begins, 0, other), tl.where(begins, matched_at_start, num)
    is_predicted = (other >= 0) & (num >= matched)
    if is_predicted:
        index, matched = other, num
    else:
        end = length
    if limit > 0:
        moved = tl.where(index >= 0, index - length, no_cursor)
        if is_predicted:
            tl.store(predicted_cursors + slot, moved)
        else:
            tl.store(cursors + slot, moved)
    number = tl.minimum(tl.where(index >= 0, end - index, 0), limit)
    tl.store(found + row, matched)
    tl.store(found + num_rows + row, number)
    tl.store(found + 2 * num_rows + row, tl.where(is_predicted, index, -1))
    column = tl.arange(0, width_tile)
    mask = column < number
    own = tl.load(text + index + column, mask=mask & (not is_predicted), other=0)
    of_other = tl.load(predicted + index + column, mask=mask & is_predicted, other=0)
    token = tl.where(is_predicted, of_other, own)
    tl.store(following + row * width + column, token.to(tl.int64), mask=column < width)


@triton.jit
def _match(
    text, length, source, end, first, stop, cursor, tile: tl.constexpr, longest: tl.constexpr
):
    """Returns where a text goes on in a source, and how many tokens before that are the same.

    Of indices from `first` to `stop` it is the one with the longest match, of equal ones that next
    to the cursor, else the cursor itself if that is before the end, else -1.
    """
    best = tl.full([tile], -1, tl.int64)
    where = tl.zeros([tile], tl.int64)
    first, near = tl.maximum(first, 1), tl.maximum(cursor, 0)
    for start in range(first, stop, tile):
        index = start + tl.arange(0, tile)
        is_equal = index < stop
        matched = tl.zeros([tile], tl.int64)
        for back in tl.static_range(1, longest + 1):
            last = tl.load(text + length - back, mask=length >= back, other=-2)
            before = tl.load(source + index - back, mask=is_equal & (index >= back), other=-1)
            is_equal &= before == last
            matched += is_equal.to(tl.int64)
        distance = tl.maximum(index - near, near - index)
        score = tl.where(matched > 0, (matched << 32) - distance, -1)
        is_better = score > best
        best = tl.where(is_better, score, best)
        where = tl.where(is_better, index, where)
    most = tl.max(best, 0)
    index = tl.min(tl.where(best == most, where, 2**62), 0)
    # A distance is less than 2 ** 32, so the next whole number counts the tokens.
    matched = (most + (1 << 32) - 1) >> 32
    cursor = tl.where(cursor < end, cursor, -1)
    return tl.where(most >= 0, index, cursor), tl.where(most >= 0, matched, 0)
