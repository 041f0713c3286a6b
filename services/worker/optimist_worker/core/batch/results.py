"""What a pass made of its rows: the state moves on, and the result is put in the plan's order."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from optimist_common.columns import Int32Column
from optimist_common.drafts import PREDICTION
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.attention.paged_attention import KVPool
from optimist_worker.core.batch.slot_table import FittedRows, SlotTable
from optimist_worker.core.batch.window_table import WindowTable
from optimist_worker.core.drafts import Drafts, count_on_path
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import Plan, RowLogprobs, StepResult


def settle_rows(
    table: SlotTable, rows: FittedRows, verdict: Verdict
) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves the slots to where the pass has brought them; rejected drafts are left behind.

    A row that is not sound does not move. Returns how many tokens each row has emitted, and its
    verified tokens, prompt and output; int64 `[num_rows]` each.
    """
    before = rows.columns
    number = count_emitted(rows, verdict)
    # Where tokens are emitted, all but the last one are computed with the known ones.
    computed = before.num_computed_tokens + rows.num_known_tokens * verdict.is_sound
    computed += (number - 1).clamp(min=0)
    length = before.num_tokens + number
    offsets = torch.arange(verdict.token_ids.shape[1], device=number.device)
    is_new = offsets < number[:, None]
    indices = before.num_tokens[:, None] + offsets
    # What is not new is written to the row for padding.
    targets = torch.where(is_new, rows.slots[:, None], table.num_slots)
    within = indices.clamp(max=table.token_ids.shape[1] - 1)
    table.token_ids.index_put_((targets, within), verdict.token_ids.int())
    stops = table.stop_token_ids[rows.slots]
    is_stop = (verdict.token_ids[:, :, None] == stops[:, None, :]).any(2)
    is_stop &= is_new & (indices + 1 >= before.min_length[:, None])
    is_last = (length >= before.max_length) | is_stop.any(1)
    # A row that has emitted nothing was not asked whether it has ended.
    ended = before.has_ended | (is_last & (number > 0))
    table.store(rows.slots, num_tokens=length, num_computed_tokens=computed, has_ended=ended)
    return number, length


def count_emitted(rows: FittedRows, verdict: Verdict) -> torch.Tensor:
    """Returns how many new tokens each row has, `[num_rows]`: none in the middle of a prompt."""
    return (verdict.num_accepted + 1) * (rows.emits & verdict.is_sound)


class FormCounts(NamedTuple):
    """Drafts that grammars have brought, int64 `[num_rows]` each."""

    drafted: torch.Tensor
    accepted: torch.Tensor


def count_form(drafts: Drafts, verdict: Verdict) -> FormCounts | None:
    """Counts the drafts of grammars; None if there are none."""
    if drafts.is_form is None:
        return None
    return FormCounts(
        (drafts.is_form & drafts.is_node).sum(1),
        count_on_path(drafts.is_form, verdict.path, verdict.num_accepted),
    )


class Settled(NamedTuple):
    """What has come of a step."""

    packed: torch.Tensor
    """What `pack` has packed."""
    num_emitted: torch.Tensor
    """Int64 `[num_rows]`."""


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
    """Moves the rows of these slots on by a verdict, and their windows.

    Drafts lie at `indices` of windows, see `WindowDrafts`; `windows` None: nobody has any left.
    """
    number, lengths = settle_rows(table, rows, verdict)
    nodes = torch.full_like(verdict.token_ids, -1)
    if windows is not None:
        nodes = windows.follow(slots, indices, verdict, number)
    has_emitted, nothing_left = number > 0, torch.zeros_like(number)
    has_drafted = has_emitted & (drafts.num_tokens > 0)
    outputs = Outputs(
        lengths=lengths,
        num_emitted_tokens=number,
        num_drafted_tokens=drafts.num_tokens * has_emitted,
        num_accepted_tokens=verdict.num_accepted * has_emitted,
        num_form_drafted_tokens=nothing_left if form is None else form.drafted * has_emitted,
        num_form_accepted_tokens=nothing_left if form is None else form.accepted * has_emitted,
        draft_sources=drafts.sources * has_drafted,
        window_nodes=nodes[:, 0],
        draft_positions=torch.full_like(number, -1)
        if drafts.positions is None
        else torch.where(has_drafted, drafts.positions, -1),
        is_short=rows.is_short,
        failures=verdict.failures() * rows.emits,
        num_window_tokens=nothing_left if windows is None else windows.count_left(slots),
        num_fed_tokens=rows.num_known_tokens + drafts.num_tokens,
        token_ids=verdict.token_ids,
        accepted_nodes=nodes[:, 1:],
    )
    return Settled(pack(outputs), number)


def compact(table: SlotTable, pool: KVPool, rows: FittedRows, verdict: Verdict) -> None:
    """Moves keys and values of each tree's accepted path to consecutive indices."""
    if verdict.path is None:
        return
    if table.reads_sizes:
        # What was accepted of a tree is often its first nodes, which lie where they have to.
        nodes = torch.arange(verdict.path.shape[1], device=verdict.path.device)
        is_moved = (verdict.path != nodes) & (nodes < verdict.num_accepted[:, None])
        if not is_moved.any():
            return
    MOVE(verdict.path, verdict.num_accepted, rows.slots, rows.ends, table, pool)


def move_path(
    path: torch.Tensor,
    number: torch.Tensor,
    slots: torch.Tensor,
    first: torch.Tensor,
    table: SlotTable,
    pool: KVPool,
) -> None:
    """Moves the nodes `path[:, :number]` of trees at index `first` to the indices from there on.

    The path's nodes are ascending, `[num_rows, width]`; the others `[num_rows]`.
    """
    offsets = torch.arange(path.shape[1], device=path.device)
    is_moved = offsets < number[:, None]
    columns = slots[:, None].expand_as(path)
    trash = table.trash_block * table.block_size
    source = table.kv_indices(columns, first[:, None] + path)
    target = table.kv_indices(columns, first[:, None] + offsets)
    source = torch.where(is_moved, source, trash).flatten()
    target = torch.where(is_moved, target, trash).flatten()
    pool.move(source, target)


_ROOM = "optimist_worker.core.batch.row_kernels"
SETTLE = Operation("settle", settle, f"{_ROOM}:settle")
MOVE = Operation("compact", move_path, f"{_ROOM}:move_path")


Column = TypeVar("Column", torch.Tensor, Int32Column)


class Outputs(NamedTuple, Generic[Column]):
    """The rows that ran, on the device or on the host; see `StepResult`."""

    lengths: Column
    num_emitted_tokens: Column
    num_drafted_tokens: Column
    num_accepted_tokens: Column
    num_form_drafted_tokens: Column
    num_form_accepted_tokens: Column
    draft_sources: Column
    window_nodes: Column
    draft_positions: Column
    is_short: Column
    """1 where the blocks did not hold the known tokens."""
    failures: Column
    """Why rows that should have emitted did not, a `RowFailure`."""
    num_window_tokens: Column
    """Nodes that the window has left to draft."""
    num_fed_tokens: Column
    """Tokens that the pass was fed, drafts included."""
    token_ids: Column
    accepted_nodes: Column


NUM_COLUMNS = len(Outputs._fields) - 2
"""What `pack` puts before tokens and nodes of a row."""
_NONE = -1
"""In columns of nodes and positions."""
_IDLE = np.array(
    [
        [_NONE if name in ("window_nodes", "draft_positions") else 0]
        for name in Outputs._fields[:-2]
    ],
    np.int32,
)
"""What rows that did not run have in each column."""


def pack(outputs: Outputs[torch.Tensor]) -> torch.Tensor:
    """Packs outputs `[num_rows]` into int32 `[num_rows, columns, tokens and nodes]`.

    The tokens are `[num_rows, width]`, of which as many of a row count as it has emitted, and the
    nodes `[num_rows, width - 1]`.
    """
    *columns, token_ids, nodes = outputs
    return torch.cat([torch.stack(columns, 1), token_ids, nodes], 1).int()


def unpack(packed: Int32Column) -> Outputs[Int32Column]:
    """Reads what `pack` has packed, int32 `[num_rows, columns, tokens and nodes]`."""
    columns, width = packed.T[:NUM_COLUMNS], (packed.shape[1] - NUM_COLUMNS + 1) // 2
    token_ids, nodes = packed[:, NUM_COLUMNS:][:, :width], packed[:, NUM_COLUMNS:][:, width:]
    _, num_emitted, _, num_accepted, _, num_form_accepted, sources, *_ = columns
    if width == 1 and num_emitted.all():
        return Outputs._make([*columns, token_ids[:, 0], nodes.ravel()])
    is_emitted = num_emitted[:, None] > np.arange(width)
    num_nodes = (num_accepted - num_form_accepted) * (sources == PREDICTION)
    is_accepted = num_nodes[:, None] > np.arange(nodes.shape[1])
    return Outputs._make([*columns, token_ids[is_emitted], nodes[is_accepted]])


def no_outputs() -> Outputs[Int32Column]:
    """Returns the outputs of no rows."""
    return unpack(np.empty((0, NUM_COLUMNS), np.int32))


def collect_result(
    plan: Plan,
    slots: list[int],
    outputs: Outputs[Int32Column],
    errors: dict[int, str],
    lengths: dict[int, int],
    draft_ns: int,
    logprobs: Sequence[RowLogprobs] = (),
) -> StepResult:
    """Puts the outputs of a step in the plan's order; rows that did not run emitted nothing.

    The rows of `slots` ran, in the plan's order; `lengths` are the tokens of those that did not,
    where they hold a request. Log-probabilities of rows that failed are left out.
    """
    columns = np.array(outputs[:-2])
    if len(slots) < len(plan.slots):
        columns = _spread(columns, np.isin(plan.slots, slots))
        for row, slot in enumerate(plan.slots.tolist()):
            columns[0, row] += lengths.get(slot, 0)
    spread: Outputs[Int32Column] = Outputs._make([*columns, *outputs[-2:]])
    return StepResult(
        sequence=plan.sequence,
        slots=plan.slots,
        lengths=spread.lengths,
        num_emitted_tokens=spread.num_emitted_tokens,
        token_ids=spread.token_ids,
        num_drafted_tokens=spread.num_drafted_tokens,
        num_accepted_tokens=spread.num_accepted_tokens,
        draft_sources=spread.draft_sources,
        window_nodes=spread.window_nodes,
        draft_positions=spread.draft_positions,
        accepted_nodes=spread.accepted_nodes,
        num_form_drafted_tokens=spread.num_form_drafted_tokens,
        num_form_accepted_tokens=spread.num_form_accepted_tokens,
        errors=errors,
        num_tokens=int(outputs.num_fed_tokens.sum()),
        draft_ns=draft_ns,
        logprobs=[row for row in logprobs if row.slot not in errors],
    )


def _spread(columns: Int32Column, chosen: npt.NDArray[np.bool_]) -> Int32Column:
    """Puts columns where `chosen` is set, `_IDLE` elsewhere, `[num_columns, len(chosen)]`."""
    whole: Int32Column = np.repeat(_IDLE, len(chosen), 1)
    whole[:, chosen] = columns
    return whole
