"""What a step does around the model as kernels: a program for each row, a launch for each part.

Rows are fitted to their state; their tokens are laid out for the pass, after those of the rows
before; and their state moves on. Loops go over a row's own tokens, so a launch has the same size
whatever the state is, and can be captured.
"""

import torch
import triton
import triton.language as tl

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.attention.paged_attention import KVPool
from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES, Layout, PassSize
from optimist_worker.core.batch.results import NUM_COLUMNS, FormCounts, Settled
from optimist_worker.core.batch.slot_table import FittedRows, SlotColumns, SlotTable
from optimist_worker.core.batch.window_table import FIRST_NODE, NUM_INDICES, WindowTable
from optimist_worker.core.drafts import Drafts, Ragged

_TILE = 1024
_NUM_COLUMNS = len(SlotColumns._fields)


def fit_rows(plan: torch.Tensor, table: SlotTable) -> FittedRows:
    """Is `slot_table.fit_rows`."""
    number, plan = plan.shape[1], plan.contiguous()
    fitted = plan.new_empty((_NUM_COLUMNS + 4, number))
    flags = plan.new_empty((2, number), dtype=torch.bool)
    with torch.cuda.device_of(plan):
        fit_row[(number,)](
            plan,
            table.columns,
            table.may_draft,
            fitted,
            flags,
            table.num_slots + 1,
            _NUM_COLUMNS,
            num_warps=1,
        )
    columns, (known, ends, limits, of_drafter) = fitted[:_NUM_COLUMNS], fitted[_NUM_COLUMNS:]
    return FittedRows(
        plan[0], SlotColumns(*columns), known, ends, flags[0], limits, of_drafter, flags[1]
    )


@triton.jit
def fit_row(plan, columns, may_draft, fitted, flags, num_slots, num_columns: tl.constexpr):
    """Fits one row; the grid is `[num_rows]`."""
    row, num_rows = tl.program_id(0), tl.num_programs(0)
    slot = tl.load(plan + row)
    for column in tl.static_range(num_columns):
        value = tl.load(columns + column * num_slots + slot)
        tl.store(fitted + column * num_rows + row, value)
    num_tokens, computed = tl.load(columns + slot), tl.load(columns + num_slots + slot)
    has_ended = tl.load(columns + 2 * num_slots + slot)
    max_length = tl.load(columns + 4 * num_slots + slot)
    capacity = tl.load(columns + 6 * num_slots + slot)
    left = num_tokens - computed
    wanted = tl.minimum(tl.load(plan + num_rows + row), left) * (1 - has_ended)
    is_short = computed + wanted > capacity
    known = tl.where(is_short, 0, wanted)
    emits = (known == left) & (known > 0)
    room = tl.minimum(capacity, max_length - 1) - computed - known
    limit = tl.maximum(tl.minimum(tl.load(plan + 2 * num_rows + row), room), 0)
    limit = tl.where(emits, limit, 0)
    out = fitted + num_columns * num_rows + row
    tl.store(out, known)
    tl.store(out + num_rows, computed + known)
    tl.store(out + 2 * num_rows, limit)
    tl.store(out + 3 * num_rows, limit * tl.load(may_draft + slot))
    tl.store(flags + row, emits)
    tl.store(flags + num_rows + row, is_short)


def lay_out_rows(
    slots: torch.Tensor, table: SlotTable, rows: FittedRows, drafts: Drafts, size: PassSize
) -> Layout:
    """Is `flat_batch.lay_out_rows`."""
    num_rows, width = len(slots), drafts.width
    starts = slots.new_empty((2, num_rows + 1))
    of_tokens = slots.new_empty((6, size.num_tokens))
    of_nodes = slots.new_empty((5, size.num_logits))
    is_token = slots.new_empty(size.num_tokens, dtype=torch.bool)
    is_node = slots.new_empty(size.num_logits, dtype=torch.bool)
    block_tables = table.block_tables.new_empty((num_rows, table.block_tables.shape[1]))
    has_tree = drafts.parents is not None and width > 0
    depths = slots.new_empty((num_rows, width)) if has_tree else slots
    with torch.cuda.device_of(slots):
        lay_out_row[(num_rows + 1,)](
            slots,
            rows.num_known_tokens,
            rows.starts,
            rows.emits,
            drafts.num_tokens,
            drafts.token_ids.contiguous(),
            drafts.parents.contiguous() if drafts.parents is not None else slots,
            table.token_ids,
            table.block_tables,
            starts,
            of_tokens,
            of_nodes,
            is_token,
            is_node,
            depths,
            block_tables,
            *(num_rows, size.num_tokens, size.num_logits, width),
            *(table.token_ids.shape[1], table.block_tables.shape[1], table.trash_block),
            table.block_size,
            _TILE,
            triton.next_power_of_2(num_rows),
            triton.next_power_of_2(width) if width else 0,
            has_tree,
            max(width, 1).bit_length(),
            MOST_TREE_NODES,
        )
    if has_tree:
        drafts.known_depths = depths
    token_rows, offsets, input_ids, positions, slot_mapping, ancestors = of_tokens
    node_rows, elements, indices, next_positions, next_slots = of_nodes
    return Layout(
        tokens=Ragged(starts[0], token_rows, offsets, is_token, is_exact=False),
        nodes=Ragged(starts[1], node_rows, elements, is_node, is_exact=False),
        input_ids=input_ids,
        positions=positions,
        slot_mapping=slot_mapping,
        ancestors=ancestors if has_tree else None,
        block_tables=block_tables,
        logits_indices=indices,
        next_positions=next_positions,
        next_slots=next_slots,
    )


@triton.jit
def lay_out_row(  # noqa: PLR0915 - a program is one function
    slots,
    num_known,
    computed,
    emits,
    num_drafts,
    draft_ids,
    parents,
    token_ids,
    block_tables,
    starts,
    of_tokens,
    of_nodes,
    is_token,
    is_node,
    depths,
    tables,
    num_rows,
    num_tokens,
    num_nodes,
    width,
    max_length,
    num_blocks,
    trash_block,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    row_tile: tl.constexpr,
    width_tile: tl.constexpr,
    has_tree: tl.constexpr,
    num_jumps: tl.constexpr,
    most_bits: tl.constexpr,
):
    """Lays out one row, or after the last one the padding; the grid is `[num_rows + 1]`."""
    row = tl.program_id(0)
    every = tl.arange(0, row_tile)
    is_row = every < num_rows
    known = tl.load(num_known + every, mask=is_row, other=0)
    drafted = tl.load(num_drafts + every, mask=is_row, other=0)
    asked = tl.where(tl.load(emits + every, mask=is_row, other=0) != 0, 1 + drafted, 0)
    start = tl.sum(tl.where(every < row, known + drafted, 0), 0)
    node_start = tl.sum(tl.where(every < row, asked, 0), 0)
    tl.store(starts + row, start)
    tl.store(starts + num_rows + 1 + row, node_start)
    # Padding is said to be of the last row.
    own = tl.minimum(row, num_rows - 1).to(tl.int64)
    slot, first = tl.load(slots + own), tl.load(computed + own)
    known, number = tl.load(num_known + own), tl.load(num_drafts + own)
    texts, blocks = token_ids + slot * max_length, block_tables + slot * num_blocks
    lane = tl.arange(0, tile)
    zero = tl.zeros([tile], tl.int64)
    if row == num_rows:
        of_pass = (of_tokens, is_token, start, num_tokens)
        filler = tl.load(texts + tl.minimum(first, max_length - 1)).to(tl.int64)
        _pad(of_pass, (own, filler, first, trash_block * block_size, own * 0), tile)
        # The last row may have no token, and be the only one.
        last = tl.maximum(start - number - 1, 0)
        _pad((of_nodes, is_node, node_start, num_nodes), (own, last, first + known, slot), tile)
    else:
        for begin in range(0, num_blocks, tile):
            mask = begin + lane < num_blocks
            copied = tl.load(blocks + begin + lane, mask=mask)
            tl.store(tables + own * num_blocks + begin + lane, copied, mask=mask)
        for begin in range(0, known, tile):
            offset = begin + lane
            mask = offset < known
            index = first + offset
            token = tl.load(texts + tl.minimum(index, max_length - 1), mask=mask, other=0)
            out = of_tokens + start + offset
            tl.store(out, zero + own, mask=mask)
            tl.store(out + num_tokens, offset, mask=mask)
            tl.store(out + 2 * num_tokens, token.to(tl.int64), mask=mask)
            tl.store(out + 3 * num_tokens, index, mask=mask)
            at = _place(blocks, index, num_blocks, block_size, mask)
            tl.store(out + 4 * num_tokens, at, mask=mask)
            tl.store(out + 5 * num_tokens, zero, mask=mask)
            tl.store(is_token + start + offset, zero == 0, mask=mask)
        end = first + known
        if tl.load(emits + own):
            tl.store(of_nodes + node_start, own)
            tl.store(of_nodes + num_nodes + node_start, own * 0)
            tl.store(of_nodes + 2 * num_nodes + node_start, start + known - 1)
            tl.store(of_nodes + 3 * num_nodes + node_start, end)
            tl.store(of_nodes + 4 * num_nodes + node_start, slot)
            tl.store(is_node + node_start, own >= 0)
        if width_tile > 0:
            node = tl.arange(0, width_tile)
            mask = node < number
            depth = (node + 1).to(tl.int64)
            bits = tl.zeros([width_tile], tl.int64)
            if has_tree:
                parent = tl.load(parents + own * width + node, mask=node < width, other=-1)
                is_tree = tl.max(((parent != node - 1) & mask).to(tl.int32), 0) > 0
                depth, bits = _climb(parent, num_jumps, width_tile, most_bits)
                bits = tl.where(is_tree, bits, 0)
                tl.store(depths + own * width + node, depth, mask=node < width)
            token = tl.load(draft_ids + own * width + node, mask=mask, other=0)
            out = of_tokens + start + known + node
            none = tl.zeros([width_tile], tl.int64)
            tl.store(out, none + own, mask=mask)
            tl.store(out + num_tokens, known + node, mask=mask)
            tl.store(out + 2 * num_tokens, token, mask=mask)
            tl.store(out + 3 * num_tokens, end - 1 + depth, mask=mask)
            at = _place(blocks, end + node, num_blocks, block_size, mask)
            tl.store(out + 4 * num_tokens, at, mask=mask)
            tl.store(out + 5 * num_tokens, bits, mask=mask)
            tl.store(is_token + start + known + node, none == 0, mask=mask)
            out = of_nodes + node_start + 1 + node
            tl.store(out, none + own, mask=mask)
            tl.store(out + num_nodes, none + 1 + node, mask=mask)
            tl.store(out + 2 * num_nodes, start + known + node, mask=mask)
            tl.store(out + 3 * num_nodes, end + depth, mask=mask)
            tl.store(out + 4 * num_nodes, none + slot, mask=mask)
            tl.store(is_node + node_start + 1 + node, none == 0, mask=mask)


@triton.jit
def _pad(part, values, tile: tl.constexpr):
    """Fills columns of a pass up: rows, offsets of 0, and some values; what is real is not."""
    columns, is_real, start, end = part
    for begin in range(start, end, tile):
        at = begin + tl.arange(0, tile)
        zero = tl.zeros([tile], tl.int64)
        tl.store(is_real + at, zero != 0, mask=at < end)
        tl.store(columns + at, zero + values[0], mask=at < end)
        tl.store(columns + end + at, zero, mask=at < end)
        for column in tl.static_range(1, len(values)):
            tl.store(columns + (column + 1) * end + at, zero + values[column], mask=at < end)


@triton.jit
def _place(blocks, index, num_blocks, block_size: tl.constexpr, mask):
    """Returns where tokens at some indices lie in the pool: after the table in the trash."""
    block = tl.minimum(index // block_size, num_blocks - 1)
    return tl.load(blocks + block, mask=mask, other=0).to(tl.int64) * block_size + (
        index % block_size
    )


@triton.jit
def _climb(parent, num_jumps: tl.constexpr, tile: tl.constexpr, most_bits: tl.constexpr):
    """Returns depths and ancestors as bits of the nodes of a tree, by pointer doubling."""
    node = tl.arange(0, tile)
    depth = tl.full([tile], 1, tl.int64)
    one = tl.full([tile], 1, tl.int64)
    bits = tl.where(node < most_bits, one << tl.minimum(node, most_bits - 1), 0)
    jump = parent.to(tl.int32)
    for _ in tl.static_range(num_jumps):
        above, goes = tl.maximum(jump, 0), jump >= 0
        depth += tl.where(goes, tl.gather(depth, above, 0), 0)
        bits |= tl.where(goes, tl.gather(bits, above, 0), 0)
        jump = tl.where(goes, tl.gather(jump, above, 0), -1)
    return depth, bits


def settle(
    slots: torch.Tensor,
    table: SlotTable,
    windows: WindowTable | None,
    rows: FittedRows,
    drafts: Drafts,
    indices: torch.Tensor | None,
    verdict: Verdict,
    form: FormCounts | None,
) -> Settled:
    """Is `results.settle`."""
    num_rows, width = len(slots), drafts.width
    number = torch.empty_like(rows.limits)
    packed = slots.new_empty((num_rows, NUM_COLUMNS + 1 + 2 * width), dtype=torch.int32)
    has_path, has_indices = verdict.path is not None, indices is not None
    none = slots
    with torch.cuda.device_of(slots):
        settle_row[(num_rows,)](
            slots,
            rows.num_known_tokens,
            rows.emits,
            rows.is_short,
            verdict.token_ids.contiguous(),
            verdict.num_accepted,
            verdict.path.contiguous() if verdict.path is not None else none,
            verdict.is_sound,
            none if verdict.is_stuck is None else verdict.is_stuck,
            drafts.num_tokens,
            drafts.sources,
            none if drafts.positions is None else drafts.positions,
            indices.contiguous() if indices is not None else none,
            none if form is None else form.drafted,
            none if form is None else form.accepted,
            table.columns,
            table.token_ids,
            table.stop_token_ids,
            none if windows is None else windows.indices,
            none if windows is None else windows.here,
            number,
            packed,
            *(drafts.sources.stride(0), indices.shape[1] if indices is not None else 0),
            *(table.num_slots + 1, table.token_ids.shape[1], width),
            windows.vocab_size if windows is not None else 0,
            table.stop_token_ids.shape[1],
            triton.next_power_of_2(1 + width),
            NUM_INDICES,
            triton.next_power_of_2(NUM_INDICES),
            FIRST_NODE,
            NUM_COLUMNS,
            has_path,
            has_indices,
            windows is not None,
            verdict.is_stuck is not None,
            drafts.positions is not None,
            form is not None,
        )
    return Settled(packed, number)


@triton.jit
def settle_row(  # noqa: PLR0915 - a program is one function
    slots,
    num_known,
    emits,
    is_short,
    token_ids,
    num_accepted,
    path,
    is_sound,
    is_stuck,
    num_drafts,
    sources,
    positions,
    indices,
    form_drafted,
    form_accepted,
    columns,
    texts,
    stop_token_ids,
    window_indices,
    here,
    numbers,
    packed,
    source_stride,
    num_indexed,
    num_slots,
    max_length,
    width,
    vocab_size,
    num_stops: tl.constexpr,
    tile: tl.constexpr,
    num_indices: tl.constexpr,
    window_tile: tl.constexpr,
    first_node: tl.constexpr,
    num_columns: tl.constexpr,
    has_path: tl.constexpr,
    has_indices: tl.constexpr,
    has_windows: tl.constexpr,
    has_stuck: tl.constexpr,
    has_positions: tl.constexpr,
    has_form: tl.constexpr,
):
    """Moves one row on; the grid is `[num_rows]`. What is of padding is written as it was."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    before, computed = tl.load(columns + slot), tl.load(columns + num_slots + slot)
    has_ended = tl.load(columns + 2 * num_slots + slot)
    max_tokens = tl.load(columns + 4 * num_slots + slot)
    min_tokens = tl.load(columns + 5 * num_slots + slot)
    known, accepted = tl.load(num_known + row), tl.load(num_accepted + row)
    may_emit, sound = tl.load(emits + row) != 0, tl.load(is_sound + row) != 0
    number = tl.where(may_emit & sound, accepted + 1, 0)
    computed += tl.where(sound, known, 0) + tl.maximum(number - 1, 0)
    length = before + number
    lane = tl.arange(0, tile)
    is_token = lane < 1 + width
    token = tl.load(token_ids + row * (1 + width) + lane, mask=is_token, other=0)
    is_new = lane < number
    at = tl.minimum(before + lane, max_length - 1)
    tl.store(texts + slot * max_length + at, token.to(tl.int32), mask=is_new)
    is_stop = lane < 0
    for stop in range(num_stops):
        is_stop |= token == tl.load(stop_token_ids + slot * num_stops + stop)
    is_stop &= is_new & (before + lane + 1 >= min_tokens)
    is_last = (length >= max_tokens) | (tl.max(is_stop.to(tl.int32), 0) > 0)
    ends = is_last & (number > 0)
    tl.store(columns + slot, length)
    tl.store(columns + num_slots + slot, computed)
    tl.store(columns + 2 * num_slots + slot, tl.where(ends, 1, has_ended))
    tl.store(numbers + row, number)
    out = packed + row * (num_columns + 1 + 2 * width)
    tl.store(out + num_columns + lane, token.to(tl.int32), mask=is_token)
    node = tl.full([tile], -1, tl.int64)
    at_node = tl.full([], -1, tl.int64)
    num_left = tl.zeros([], tl.int64)
    if has_windows:
        index, first = tl.load(here + slot), tl.load(here + num_slots + slot)
        last = tl.load(here + 2 * num_slots + slot)
        passed = index + 1 + lane
        if has_indices:
            behind = lane.to(tl.int64)
            if has_path:
                behind = tl.load(path + row * width + lane, mask=lane < width, other=0)
            behind = tl.minimum(behind, num_indexed - 1)
            from_window = indices + row * num_indexed + behind
            passed = tl.load(from_window, mask=lane < width, other=0)
        # The last accepted draft's index, or where the row was.
        reached = tl.sum(tl.where(lane == accepted - 1, passed, 0), 0)
        reached = tl.where(accepted > 0, reached, index)
        reached = tl.where(last > first, reached, 0)
        wanted = reached * vocab_size + tl.sum(tl.where(lane == accepted, token, 0), 0)
        place = tl.arange(0, window_tile)
        keys = window_indices + slot * num_indices
        key = tl.load(keys + place, mask=place < num_indices, other=-1)
        found = tl.min(tl.where(key == wanted, place, num_indices), 0)
        found = tl.where(found < num_indices, found, 0).to(tl.int64)
        at_node, node = index - first_node, passed - first_node
        if number > 0:
            first = tl.load(keys + num_slots * num_indices + found)
            last = tl.load(keys + 2 * num_slots * num_indices + found)
            tl.store(here + slot, found)
            tl.store(here + num_slots + slot, first)
            tl.store(here + 2 * num_slots + slot, last)
        num_left = last - first
    tl.store(out + num_columns + 1 + width + lane, node.to(tl.int32), mask=lane < width)
    drafted = tl.load(num_drafts + row)
    emitted = number > 0
    tl.store(out, length.to(tl.int32))
    tl.store(out + 1, number.to(tl.int32))
    tl.store(out + 2, tl.where(emitted, drafted, 0).to(tl.int32))
    tl.store(out + 3, tl.where(emitted, accepted, 0).to(tl.int32))
    of_form, form_taken = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    if has_form:
        of_form, form_taken = tl.load(form_drafted + row), tl.load(form_accepted + row)
    tl.store(out + 4, tl.where(emitted, of_form, 0).to(tl.int32))
    tl.store(out + 5, tl.where(emitted, form_taken, 0).to(tl.int32))
    is_drafted = emitted & (drafted > 0)
    source = tl.load(sources + row * source_stride)
    tl.store(out + 6, tl.where(is_drafted, source, 0).to(tl.int32))
    tl.store(out + 7, at_node.to(tl.int32))
    position = tl.full([], -1, tl.int64)
    if has_positions:
        position = tl.load(positions + row)
    tl.store(out + 8, tl.where(is_drafted, position, -1).to(tl.int32))
    tl.store(out + 9, tl.load(is_short + row).to(tl.int32))
    failure = tl.where(sound, 0, 1)
    if has_stuck:
        failure += tl.load(is_stuck + row).to(tl.int32)
    tl.store(out + 10, tl.where(may_emit, failure, 0))
    tl.store(out + 11, num_left.to(tl.int32))
    tl.store(out + 12, (known + drafted).to(tl.int32))


def move_path(
    path: torch.Tensor,
    number: torch.Tensor,
    slots: torch.Tensor,
    first: torch.Tensor,
    table: SlotTable,
    pool: KVPool,
) -> None:
    """Is `results.move_path`; only what moves is read."""
    num_rows, width = path.shape
    for memory in pool.memory:
        size = memory[0, 0].numel()
        with torch.cuda.device_of(path):
            move_row[(num_rows, len(memory))](
                path.contiguous(),
                number,
                slots,
                first,
                table.block_tables,
                memory,
                memory.stride(0),
                width,
                table.block_tables.shape[1],
                table.block_size,
                size,
                triton.next_power_of_2(size),
            )


@triton.jit
def move_row(
    path,
    numbers,
    slots,
    ends,
    block_tables,
    memory,
    layer_stride,
    width,
    num_blocks,
    block_size: tl.constexpr,
    size: tl.constexpr,
    tile: tl.constexpr,
):
    """Moves the path of one row in one layer; the grid is `[num_rows, layers]`.

    Nodes come after their parents, so what is moved goes where nothing is left to be read.
    """
    row = tl.program_id(0).to(tl.int64)
    number, slot = tl.load(numbers + row), tl.load(slots + row)
    end, blocks = tl.load(ends + row), block_tables + slot * num_blocks
    vectors = memory + tl.program_id(1).to(tl.int64) * layer_stride
    lane = tl.arange(0, tile)
    for offset in range(number):
        node = tl.load(path + row * width + offset)
        if node != offset:
            source = _place(blocks, end + node, num_blocks, block_size, node >= 0)
            target = _place(blocks, end + offset, num_blocks, block_size, node >= 0)
            vector = tl.load(vectors + source * size + lane, mask=lane < size)
            tl.store(vectors + target * size + lane, vector, mask=lane < size)
