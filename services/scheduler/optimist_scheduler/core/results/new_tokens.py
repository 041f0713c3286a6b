"""The tokens that one step has brought, cut where requests end."""

from dataclasses import dataclass, field

import numpy as np

from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.state import SchedulerState, StepInFlight
from optimist_scheduler.core.requests.table import Request, Rows
from optimist_scheduler.core.results.check import DraftNodes
from optimist_scheduler.core.values.arrays import BoolArray, Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.values.output import FinishReason


@dataclass(slots=True)
class NewTokens:
    """The rows of a step that got tokens."""

    slots: SlotArray
    """[num_rows]"""
    starts: Int32Array
    """Length of each sequence before the step [num_rows]."""
    window_ends: Int32Array
    """Length of each sequence at the end of its window's likeliest path [num_rows]."""
    num_tokens: Int32Array
    """New tokens per row [num_rows]."""
    num_drafted_tokens: Int32Array
    num_accepted_tokens: Int32Array
    draft_sources: Int32Array
    nodes: DraftNodes
    token_ids: Int32Array
    """The new tokens, row after row [num_new]."""
    rows: Int64Array
    """Row of each token [num_new]."""
    cells: Int64Array
    """Where each token lies among those of all slots, see RequestTable.cells [num_new]."""
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    """Why requests end with their last token, by row."""


def find_new_tokens(
    state: SchedulerState,
    step: StepInFlight,
    rows: Rows,
    alive: BoolArray,
    result: StepResult,
    nodes: DraftNodes,
) -> NewTokens:
    """Returns the tokens of the requests that are not over, cut where the requests end.

    Args:
        state: The state.
        step: The plan.
        rows: Its rows before the result.
        alive: Which of them belong to requests that are not over [num_rows].
        result: The result.
        nodes: The nodes of its drafts.
    """
    slots, counts, token_ids = step.slots, result.num_emitted_tokens, result.token_ids
    drafted, accepted = result.num_drafted_tokens, result.num_accepted_tokens
    sources = result.draft_sources
    if np.count_nonzero(counts) < len(counts) or np.count_nonzero(alive) < len(alive):
        gets = alive & (counts > 0)
        token_ids = token_ids[np.repeat(gets, counts)]
        of_accepted = np.repeat(gets, accepted)
        nodes = DraftNodes(
            nodes.window_nodes[gets],
            nodes.accepted_slots[of_accepted],
            nodes.accepted_positions[of_accepted],
        )
        slots, counts, drafted = slots[gets], counts[gets], drafted[gets]
        accepted, sources = accepted[gets], sources[gets]
        rows = Rows(*(column[gets] for column in rows))
    starts, of_row = rows.num_tokens, np.arange(len(slots))
    cells = state.table.cells(slots, starts)
    if len(token_ids) != len(slots):
        of_row = np.repeat(of_row, counts)
        cells = (cells - (np.cumsum(counts) - counts))[of_row] + np.arange(len(token_ids))
    new = NewTokens(
        slots,
        starts,
        rows.window_end,
        counts,
        drafted,
        accepted,
        sources,
        nodes,
        token_ids,
        of_row,
        cells,
    )
    _cut_at_stops(state, new)
    is_full = new.starts + new.num_tokens >= rows.max_length
    for row in is_full.nonzero()[0].tolist():
        new.reasons.setdefault(row, FinishReason.LENGTH)
    return new


def _cut_at_stops(state: SchedulerState, new: NewTokens) -> None:
    if not np.count_nonzero(may_stop := state.stops.find(new.token_ids)):
        return
    counts = new.num_tokens.copy()
    for row in np.unique(new.rows[may_stop]).tolist():
        slot, start = int(new.slots[row]), int(new.starts[row])
        request = state.table.request(slot)
        index = find_stop(request, start, new.token_ids[new.rows == row].tolist())
        if index is not None:
            counts[row] = index + 1
            new.reasons[row] = FinishReason.STOP
    kept = _find_first(new.num_tokens, counts)
    new.token_ids, new.rows, new.cells = new.token_ids[kept], new.rows[kept], new.cells[kept]
    num_accepted = np.minimum(new.num_accepted_tokens, counts)
    is_kept = _find_first(new.num_accepted_tokens, num_accepted)
    nodes = new.nodes
    new.nodes = nodes._replace(
        accepted_slots=nodes.accepted_slots[is_kept],
        accepted_positions=nodes.accepted_positions[is_kept],
    )
    new.num_tokens, new.num_accepted_tokens = counts, num_accepted


def _find_first(numbers: Int32Array, kept: Int32Array) -> BoolArray:
    """Returns which of so many elements of each row are the first ones that are kept."""
    first = np.cumsum(numbers) - numbers
    index = np.arange(int(numbers.sum())) - np.repeat(first, numbers)
    is_kept: BoolArray = index < np.repeat(kept, numbers)
    return is_kept


def find_stop(request: Request, length: int, token_ids: list[int]) -> int | None:
    """Returns which of a request's new tokens ends it, if one does.

    Args:
        request: The request.
        length: Tokens that it had before, prompt and output.
        token_ids: The new ones.
    """
    for index, token_id in enumerate(token_ids):
        if token_id in request.stop_token_ids and length + index + 1 >= request.min_length:
            return index
    return None
