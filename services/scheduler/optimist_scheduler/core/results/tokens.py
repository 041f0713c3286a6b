"""The tokens that a result brings: cut where requests end, counted, compared with windows."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimist_common.drafts import FORM, PREDICTION
from optimist_scheduler.core.base.values import (
    BoolArray,
    FinishReason,
    Int32Array,
    Int64Array,
    SlotArray,
    count_up,
    find_first,
)
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Counters
from optimist_scheduler.core.results.check import DraftNodes
from optimist_scheduler.core.windows.window import NO_POSITION, NO_WINDOW


@dataclass(slots=True)
class NewTokens:
    """The rows of a step that got tokens."""

    slots: SlotArray
    """[num_rows]"""
    starts: Int32Array
    """Length of each sequence before the step [num_rows]."""
    num_tokens: Int32Array
    """New tokens per row [num_rows]."""
    num_drafted_tokens: Int32Array
    num_accepted_tokens: Int32Array
    num_base_drafted_tokens: Int32Array
    """See StepResult."""
    num_base_accepted_tokens: Int32Array
    draft_sources: Int32Array
    nodes: DraftNodes
    token_ids: Int32Array
    """The new tokens, row after row [num_new]."""
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    """Why requests end with their last token, by row."""
    ends: Int32Array = field(init=False)
    """Length of each sequence after the step [num_rows]."""

    def find_rows(self, tokens: Int64Array) -> Int64Array:
        """Returns the rows of some of the tokens, by their indices [num_tokens]."""
        return self.num_tokens.cumsum().searchsorted(tokens, side="right")


def find_new_tokens(
    state: SchedulerState,
    step: Plan,
    rows: Counters,
    alive: BoolArray,
    result: StepResult,
    nodes: DraftNodes,
) -> NewTokens:
    """Returns the tokens of the requests that are not over, cut where the requests end."""
    counts, accepted = result.num_emitted_tokens, result.num_accepted_tokens
    token_ids = result.token_ids
    columns: list[Any] = [step.slots, rows.num_tokens, counts, result.num_drafted_tokens, accepted]
    columns += [result.num_base_drafted_tokens, result.num_base_accepted_tokens]
    columns += [result.draft_sources, rows.max_length]
    if np.count_nonzero(counts) < len(counts) or np.count_nonzero(alive) < len(alive):
        gets = alive & (counts > 0)
        token_ids = token_ids[gets.repeat(counts)]
        nodes = nodes.select(gets, accepted)
        chosen = gets.nonzero()[0]
        columns = [column.take(chosen) for column in columns]
    *columns, max_lengths = columns
    columns += [nodes, token_ids]
    new = NewTokens(*columns)
    _cut_at_stops(state, new)
    new.ends = new.starts + new.num_tokens
    is_full = new.ends >= max_lengths
    for row in is_full.nonzero()[0].tolist():
        new.reasons.setdefault(row, FinishReason.LENGTH)
    return new


def _cut_at_stops(state: SchedulerState, new: NewTokens) -> None:
    if not np.count_nonzero(may_stop := state.stops.find(new.token_ids)):
        return
    counts, ends = new.num_tokens.copy(), new.num_tokens.cumsum()
    for row in np.unique(new.find_rows(may_stop.nonzero()[0])).tolist():
        slot, start, end = int(new.slots[row]), int(new.starts[row]), int(ends[row])
        request = state.table.request(slot)
        token_ids = new.token_ids[end - int(counts[row]) : end].tolist()
        index = find_stop(request, start, token_ids)
        if index is not None:
            counts[row] = index + 1
            new.reasons[row] = FinishReason.STOP
    kept = find_first(new.num_tokens, counts)
    new.token_ids = new.token_ids[kept]
    num_accepted = np.minimum(new.num_accepted_tokens, counts)
    is_kept = find_first(new.num_accepted_tokens, num_accepted)
    positions = new.nodes.accepted_positions[is_kept]
    new.nodes = new.nodes._replace(accepted_positions=positions)
    new.num_tokens, new.num_accepted_tokens = counts, num_accepted
    new.num_base_accepted_tokens = np.minimum(new.num_base_accepted_tokens, counts)


def find_stop(request: Request, length: int, token_ids: list[int]) -> int | None:
    """Returns which of a request's new tokens ends it, if one does."""
    for index, token_id in enumerate(token_ids):
        if token_id in request.stop_token_ids and length + index + 1 >= request.min_length:
            return index
    return None


def keep(state: SchedulerState, new: NewTokens) -> None:
    """Counts the tokens with their sequences, and drafts in their accounts."""
    table = state.table
    table.num_tokens[new.slots] = new.ends
    table.num_passes[new.slots] += 1
    if np.count_nonzero(new.num_drafted_tokens):
        table.num_drafted_tokens[new.slots] += new.num_drafted_tokens
        _record_drafts(state, new)


def _record_drafts(state: SchedulerState, new: NewTokens) -> None:
    slots, kept, accounts = new.slots, new.num_base_accepted_tokens, state.accounts
    window_nodes, draft_positions, positions = new.nodes
    of_form = new.num_accepted_tokens - kept
    if np.count_nonzero(of_form):
        accounts.record_others(slots, FORM, of_form)
        positions = positions[find_first(new.num_accepted_tokens, kept)]
    if window_nodes is None or state.config.drafter is not None:
        is_known = (new.draft_sources == PREDICTION) & (window_nodes is not None)
        if draft_positions is not None:
            is_known |= draft_positions != NO_POSITION
        others = (kept > 0) > is_known
        accounts.record_others(slots[others], new.draft_sources[others], kept[others])
        positions, kept = positions[is_known.repeat(kept)], kept * is_known
    accounts.record_kept(slots, kept, positions)
    is_rejected = new.num_base_drafted_tokens > kept
    if not np.count_nonzero(is_rejected):
        return
    if window_nodes is not None:
        is_cut = is_rejected & (new.draft_sources == PREDICTION)
        drafted = state.worker_windows.find_drafted(
            slots[is_cut], window_nodes[is_cut], new.num_base_drafted_tokens[is_cut]
        )
        accounts.record_drafted(*drafted)
    if draft_positions is not None:
        is_cut = is_rejected & (draft_positions != NO_POSITION)
        number = new.num_base_drafted_tokens[is_cut]
        looked_up = count_up(draft_positions[is_cut], number)
        accounts.record_drafted(slots[is_cut].repeat(number), looked_up)


def follow_windows(state: SchedulerState, new: NewTokens) -> None:
    """Appends the tokens to their sequences and compares them with the windows.

    A window that was wrong is not drafted from any more. What was emitted tells as much of it where
    nothing was drafted.
    """
    table, slots, starts = state.table, new.slots, new.starts
    firsts = table.windows.find_first_hazards(slots, starts)
    inside, num_agreed, estimated, lost = table.windows.planes.follow(
        slots, starts, new.num_tokens, new.token_ids, table.window_end
    )
    for slot in lost:
        # The worker may not have the tree yet: it is to forget what it has instead.
        table.request(slot).window = NO_WINDOW
    # How an output begins says little of how far it repeats what is expected.
    has_window = (inside > 0) & (starts > table.num_prompt_tokens.take(slots))
    has_window &= new.draft_sources <= PREDICTION
    num_windows = np.count_nonzero(has_window)
    if not num_windows:
        return
    examined = np.minimum(num_agreed + 1, inside)
    if num_windows < len(has_window):
        rows = has_window.nonzero()[0]
        slots, starts, firsts = slots.take(rows), starts.take(rows), firsts.take(rows)
        examined, num_agreed = examined.take(rows), num_agreed.take(rows)
        estimated = estimated.take(rows)
    state.widths.windows.observe(slots, num_agreed, examined, estimated, firsts)
