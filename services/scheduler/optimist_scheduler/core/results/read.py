"""The tokens that a result brings to requests, cut where these end."""

from dataclasses import dataclass, field

import numpy as np

from optimist_scheduler.core.base.values import (
    BoolArray,
    FinishReason,
    Int32Array,
    Int64Array,
    SlotArray,
    count_up,
)
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Counters
from optimist_scheduler.core.results.nodes import DraftNodes


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
    slots, counts, token_ids = step.slots, result.num_emitted_tokens, result.token_ids
    drafted, accepted = result.num_drafted_tokens, result.num_accepted_tokens
    sources, starts, max_lengths = result.draft_sources, rows.num_tokens, rows.max_length
    if np.count_nonzero(counts) < len(counts) or np.count_nonzero(alive) < len(alive):
        gets = alive & (counts > 0)
        token_ids = token_ids[gets.repeat(counts)]
        nodes = nodes.select(gets, accepted)
        chosen = gets.nonzero()[0]
        slots, starts, max_lengths = slots.take(chosen), starts.take(chosen), max_lengths[chosen]
        counts, drafted = counts.take(chosen), drafted.take(chosen)
        accepted, sources = accepted.take(chosen), sources.take(chosen)
    new = NewTokens(slots, starts, counts, drafted, accepted, sources, nodes, token_ids)
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
    kept = _find_first(new.num_tokens, counts)
    new.token_ids = new.token_ids[kept]
    num_accepted = np.minimum(new.num_accepted_tokens, counts)
    is_kept = _find_first(new.num_accepted_tokens, num_accepted)
    positions = new.nodes.accepted_positions[is_kept]
    new.nodes = new.nodes._replace(accepted_positions=positions)
    new.num_tokens, new.num_accepted_tokens = counts, num_accepted


def _find_first(numbers: Int32Array, kept: Int32Array) -> BoolArray:
    """Returns which of so many elements of each row are the first ones that are kept."""
    index = count_up(np.zeros_like(numbers), numbers)
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
