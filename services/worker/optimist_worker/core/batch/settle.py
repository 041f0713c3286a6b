"""What a pass made of its rows: the state moves on to what was verified."""

from dataclasses import dataclass

import torch

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.attention.kv import KVPool
from optimist_worker.core.batch.slot_table import FittedRows, SlotTable


@dataclass(slots=True)
class SettledRows:
    """The rows after a pass, int64 `[num_rows]` each."""

    num_emitted: torch.Tensor
    """New tokens: none in the middle of a prompt, and none where the logits are not finite."""
    num_tokens: torch.Tensor
    """Prompt and verified output."""
    has_ended: torch.Tensor
    """1 once a stop token or `max_length` was reached."""


def settle_rows(table: SlotTable, rows: FittedRows, verdict: Verdict) -> SettledRows:
    """Moves the slots to where the pass has brought them; rejected drafts are left behind.

    A row whose logits are not finite does not move.

    Args:
        table: The state.
        rows: The rows as they were before the pass.
        verdict: What came of it.
    """
    before = rows.columns
    number = count_emitted(rows, verdict)
    # Where tokens are emitted, all but the last one are computed with the known ones.
    computed = before.num_computed_tokens + rows.num_known_tokens * verdict.is_finite
    computed += (number - 1).clamp(min=0)
    length = before.num_tokens + number
    offsets = torch.arange(verdict.token_ids.shape[1], device=number.device)
    is_new = offsets < number[:, None]
    places = before.num_tokens[:, None] + offsets
    _write_tokens(table, rows.slots, places, verdict.token_ids, is_new)
    is_last = length >= before.max_length
    is_last |= _finds_stop(table, rows, verdict.token_ids, places, is_new)
    # A row that has emitted nothing was not asked whether it has ended.
    ended = before.has_ended | (is_last & (number > 0))
    table.store(rows.slots, num_tokens=length, num_computed_tokens=computed, has_ended=ended)
    return SettledRows(number, length, ended)


def count_emitted(rows: FittedRows, verdict: Verdict) -> torch.Tensor:
    """Returns how many new tokens each row has, `[num_rows]`."""
    return (verdict.num_accepted + 1) * (rows.emits & verdict.is_finite)


def keep_rows(rows: FittedRows) -> SettledRows:
    """Returns the rows after a pass that did not take place."""
    before = rows.columns
    zeros = torch.zeros_like(before.num_tokens)
    return SettledRows(zeros, before.num_tokens, before.has_ended)


def _finds_stop(
    table: SlotTable,
    rows: FittedRows,
    token_ids: torch.Tensor,
    places: torch.Tensor,
    is_new: torch.Tensor,
) -> torch.Tensor:
    """Returns which rows have a stop token among the new ones, bool `[num_rows]`."""
    stops = table.stop_token_ids[rows.slots]
    is_stop = (token_ids[:, :, None] == stops[:, None, :]).any(2)
    is_stop &= is_new & (places + 1 >= rows.columns.min_length[:, None])
    return is_stop.any(1)


def compact(table: SlotTable, pool: KVPool, rows: FittedRows, verdict: Verdict) -> None:
    """Moves keys and values of each tree's accepted path to consecutive places.

    Args:
        table: The state, before or after the step.
        pool: Whose keys and values are moved.
        rows: The rows of the pass.
        verdict: With a path.
    """
    if verdict.path is None:
        return
    if table.reads_sizes:
        # What was accepted of a tree is often its first nodes, which lie where they have to.
        nodes = torch.arange(verdict.path.shape[1], device=verdict.path.device)
        is_moved = (verdict.path != nodes) & (nodes < verdict.num_accepted[:, None])
        if not is_moved.any():
            return
    move_path(table, pool, rows.slots, rows.ends, verdict.path, verdict.num_accepted)


def move_path(
    table: SlotTable,
    pool: KVPool,
    slots: torch.Tensor,
    first: torch.Tensor,
    path: torch.Tensor,
    number: torch.Tensor,
) -> None:
    """Moves the nodes `path[:, :number]` of trees at place `first` to the places from there on.

    Args:
        table: The state.
        pool: Whose keys and values are moved.
        slots: `[num_rows]`.
        first: Place of each tree's first node, `[num_rows]`.
        path: Nodes, ascending, `[num_rows, width]`.
        number: How many of them are moved, `[num_rows]`.
    """
    offsets = torch.arange(path.shape[1], device=path.device)
    is_moved = offsets < number[:, None]
    columns = slots[:, None].expand_as(path)
    trash = table.trash_block * table.block_size
    source = table.kv_places(columns, first[:, None] + path)
    target = table.kv_places(columns, first[:, None] + offsets)
    source = torch.where(is_moved, source, trash).flatten()
    target = torch.where(is_moved, target, trash).flatten()
    for memory in (*pool.keys, *pool.values):
        memory.index_copy_(0, target, memory.index_select(0, source))


def _write_tokens(
    table: SlotTable,
    slots: torch.Tensor,
    places: torch.Tensor,
    token_ids: torch.Tensor,
    is_new: torch.Tensor,
) -> None:
    """Appends tokens to their sequences; what is not new is written to the row for padding."""
    targets = torch.where(is_new, slots[:, None], table.num_slots)
    places = places.clamp(max=table.token_ids.shape[1] - 1)
    table.token_ids.index_put_((targets, places), token_ids.int())
