"""Windows of any number of slots in one launch, and what is drafted from them in another."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from optimist_common.drafts import DraftSource
from optimist_worker.core.batch.window_table import NUM_INDICES, WindowDrafts, WindowTable
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import WindowUpdate

_TILE = triton.next_power_of_2(NUM_INDICES)
_NODES_AT_ONCE = 16


def set_windows(
    layouts: torch.Tensor, updates: Sequence[WindowUpdate], windows: WindowTable
) -> None:
    """Is `window_table.set_windows`."""
    table = windows.table
    with torch.cuda.device_of(layouts):
        set_window[(len(layouts),)](
            layouts,
            windows.indices,
            windows.here,
            windows.most_drafts,
            table.columns,
            table.token_ids,
            table.num_slots + 1,
            table.token_ids.shape[1],
            windows.vocab_size,
            NUM_INDICES,
            _TILE,
            _NODES_AT_ONCE,
        )


@triton.jit
def set_window(
    layouts,
    indices,
    here,
    most_drafts,
    columns,
    token_ids,
    num_rows,
    max_length,
    vocab_size,
    num_indices: tl.constexpr,
    tile: tl.constexpr,
    nodes_at_once: tl.constexpr,
):
    """Sets one window; the grid is `[num_windows]`. Of slots there are `num_rows`."""
    layout = layouts + tl.program_id(0).to(tl.int64) * (4 * num_indices + 3)
    slot = tl.load(layout + 4 * num_indices)
    begin = tl.load(layout + 4 * num_indices + 1) + tl.load(columns + 3 * num_rows + slot)
    length = tl.load(columns + slot)
    tl.store(most_drafts + slot, tl.load(layout + 4 * num_indices + 2))
    lane = tl.arange(0, tile)
    is_index = lane < num_indices
    for column in tl.static_range(3):
        values = tl.load(layout + column * num_indices + lane, mask=is_index, other=0)
        tl.store(indices + (column * num_rows + slot) * num_indices + lane, values, mask=is_index)
    number = tl.load(layout + num_indices + lane, mask=is_index, other=0)
    depth = tl.load(layout + 3 * num_indices + lane, mask=is_index, other=-1)
    # A node is said if nothing from the top down to it is another token than the output's.
    num_wrong = tl.zeros([tile], tl.int32)
    for first in range(0, num_indices, nodes_at_once):
        above = first + tl.arange(0, nodes_at_once)
        is_above = above < num_indices
        its_depth = tl.load(layout + 3 * num_indices + above, mask=is_above, other=-1)
        its_token = tl.load(layout + above, mask=is_above, other=0) % vocab_size
        at = tl.minimum(tl.maximum(begin + its_depth - 1, 0), max_length - 1)
        said = tl.load(token_ids + slot * max_length + at)
        is_wrong = (its_depth > 0) & (said != its_token)
        its_number = tl.load(layout + num_indices + above, mask=is_above, other=0)
        its_last = tl.load(layout + 2 * num_indices + above, mask=is_above, other=0)
        is_below = (number[:, None] >= its_number[None, :]) & (number[:, None] <= its_last[None, :])
        num_wrong += tl.sum((is_below & is_wrong[None, :]).to(tl.int32), 1)
    is_here = is_index & (num_wrong == 0) & (depth == length - begin)
    index = tl.min(tl.where(is_here, lane, num_indices), 0)
    index = tl.where(index < num_indices, index, 0)
    tl.store(here + slot, index.to(tl.int64))
    for column in tl.static_range(1, 3):
        tl.store(here + column * num_rows + slot, tl.load(layout + column * num_indices + index))


def draft_windows(
    slots: torch.Tensor,
    limits: torch.Tensor,
    drafter_limits: torch.Tensor,
    windows: WindowTable,
    width: int,
    *,
    has_trees: bool,
) -> WindowDrafts:
    """Is `window_table.draft_windows`."""
    number = len(slots)
    num_tokens, sources, left_limits = slots.new_empty((3, number)).unbind()
    tokens, parents, indices = slots.new_empty((3, number, width)).unbind()
    with torch.cuda.device_of(slots):
        draft_window[(number,)](
            slots,
            limits,
            drafter_limits,
            windows.indices,
            windows.here,
            windows.most_drafts,
            num_tokens,
            sources,
            left_limits,
            tokens,
            parents,
            indices,
            len(windows.most_drafts),
            width,
            windows.vocab_size,
            int(DraftSource.PREDICTION),
            NUM_INDICES,
            _TILE,
            triton.next_power_of_2(width),
            has_trees,
        )
    drafts = Drafts(tokens, num_tokens, sources, parents if has_trees else None)
    return WindowDrafts(drafts, indices if has_trees else None, left_limits)


@triton.jit
def draft_window(
    slots,
    limits,
    drafter_limits,
    window_indices,
    here,
    most_drafts,
    num_tokens,
    sources,
    left_limits,
    tokens,
    parents,
    indices,
    num_slots,
    width,
    vocab_size,
    source,
    num_indices: tl.constexpr,
    tile: tl.constexpr,
    width_tile: tl.constexpr,
    has_trees: tl.constexpr,
):
    """Drafts for one row; the grid is `[num_rows]`."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    index, first = tl.load(here + slot), tl.load(here + num_slots + slot)
    last = tl.load(here + 2 * num_slots + slot)
    number = tl.minimum(tl.load(limits + row), last - first)
    keys = window_indices + slot * num_indices
    column = tl.arange(0, width_tile)
    is_column = column < width
    if has_trees:
        number = tl.minimum(number, tl.load(most_drafts + slot))
        lane = tl.arange(0, tile)
        is_index = lane < num_indices
        place = tl.load(keys + num_slots * num_indices + lane, mask=is_index, other=0)
        is_left = (place > first) & (place <= last)
        count = tl.cumsum(is_left.to(tl.int32), 0)
        key = tl.load(keys + lane, mask=is_index, other=0)
        # What is before the output, and the output itself, counts as -1.
        parent = tl.gather(count, (key // vocab_size).to(tl.int32), 0) - 1
        at = row * width + count - 1
        is_drafted = is_left & (count <= width)
        tl.store(tokens + at, key % vocab_size, mask=is_drafted)
        tl.store(parents + at, parent.to(tl.int64), mask=is_drafted)
        tl.store(indices + at, lane.to(tl.int64), mask=is_drafted)
        at = row * width + column
        is_none = is_column & (column >= tl.sum(is_left.to(tl.int32), 0))
        nothing = tl.zeros([width_tile], tl.int64)
        tl.store(tokens + at, nothing, mask=is_none)
        tl.store(parents + at, nothing - 1, mask=is_none)
        tl.store(indices + at, nothing, mask=is_none)
    else:
        behind = tl.minimum(index + 1 + column, num_indices - 1)
        key = tl.load(keys + behind, mask=is_column, other=0)
        tl.store(tokens + row * width + column, key % vocab_size, mask=is_column)
    tl.store(num_tokens + row, number)
    limit = tl.load(drafter_limits + row)
    tl.store(left_limits + row, tl.where(number == 0, limit, 0))
    tl.store(sources + row, tl.where(number > 0, source, 0).to(tl.int64))


def merge_drafts(num_tokens: torch.Tensor, windows: Drafts, drafted: Drafts) -> Drafts:
    """Is `drafts.merge_drafts`."""
    number, width = len(num_tokens), max(windows.width, drafted.width)
    has_trees = windows.parents is not None or drafted.parents is not None
    has_positions = drafted.positions is not None
    merged = num_tokens.new_empty((3, number))
    tokens, parents = num_tokens.new_empty((2, number, width)).unbind()
    with torch.cuda.device_of(num_tokens):
        merge_row[(number,)](
            *_describe(windows, num_tokens),
            *_describe(drafted, num_tokens),
            drafted.positions if has_positions else num_tokens,
            merged,
            tokens,
            parents,
            width,
            triton.next_power_of_2(width),
            has_trees,
            windows.parents is not None,
            drafted.parents is not None,
            has_positions,
        )
    return Drafts(
        token_ids=tokens,
        num_tokens=merged[0],
        sources=merged[1],
        parents=parents if has_trees else None,
        max_siblings=max(windows.max_siblings, drafted.max_siblings),
        positions=merged[2] if has_positions else None,
    )


def _describe(drafts: Drafts, none: torch.Tensor) -> tuple[torch.Tensor | int, ...]:
    return (
        drafts.num_tokens,
        drafts.token_ids.contiguous(),
        none if drafts.parents is None else drafts.parents.contiguous(),
        drafts.sources,
        drafts.sources.stride(0),
        drafts.width,
    )


@triton.jit
def merge_row(
    num_window,
    window_ids,
    window_parents,
    window_sources,
    window_stride,
    window_width,
    num_drafted,
    draft_ids,
    draft_parents,
    draft_sources,
    draft_stride,
    draft_width,
    positions,
    merged,
    tokens,
    parents,
    width,
    tile: tl.constexpr,
    has_trees: tl.constexpr,
    window_has_trees: tl.constexpr,
    draft_has_trees: tl.constexpr,
    has_positions: tl.constexpr,
):
    """Takes the drafts of one row from its window or drafter; the grid is `[num_rows]`."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, tile)
    number = tl.load(num_window + row)
    from_window = number > 0
    in_window = from_window & (lane < window_width)
    in_draft = (not from_window) & (lane < draft_width)
    token = tl.load(window_ids + row * window_width + lane, mask=in_window, other=0)
    token += tl.load(draft_ids + row * draft_width + lane, mask=in_draft, other=0)
    tl.store(tokens + row * width + lane, token, mask=lane < width)
    if has_trees:
        parent = (lane - 1).to(tl.int64)
        if window_has_trees:
            at = window_parents + row * window_width + lane
            parent = tl.where(from_window, tl.load(at, mask=in_window, other=-1), parent)
        if draft_has_trees:
            at = draft_parents + row * draft_width + lane
            parent = tl.where(from_window, parent, tl.load(at, mask=in_draft, other=-1))
        parent = tl.where(in_window | in_draft, parent, -1)
        tl.store(parents + row * width + lane, parent, mask=lane < width)
    source, position = tl.load(window_sources + row * window_stride), tl.full([], -1, tl.int64)
    if not from_window:
        number = tl.load(num_drafted + row)
        source = tl.load(draft_sources + row * draft_stride)
        if has_positions:
            position = tl.load(positions + row)
    num_rows = tl.num_programs(0)
    tl.store(merged + row, number)
    tl.store(merged + num_rows + row, source)
    tl.store(merged + 2 * num_rows + row, position)
