"""Keeps the new tokens of a step, and hands them out as columns, with what is reported of them."""

from collections.abc import Sequence

import numpy as np

from optimist_common.drafts import PREDICTION, DraftSource
from optimist_scheduler.core.base.values import (
    NO_OUTPUTS,
    BoolArray,
    Ended,
    Finished,
    FinishReason,
    Int32Array,
    Int64Array,
    ReportedLogprobs,
    ReportedPositions,
    StepOutputs,
    count_up,
)
from optimist_scheduler.core.requests.account import num_rejected_tokens
from optimist_scheduler.core.requests.following import is_due
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import NO_SLOT, Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.results.read import NewTokens
from optimist_scheduler.core.windows.window import NO_POSITION

MISSING = "the worker did not report the log-probabilities of this request"


def keep(state: SchedulerState, new: NewTokens) -> None:
    """Appends the tokens to their sequences, and drafts to their accounts."""
    table = state.table
    table.token_ids.reshape(-1)[new.cells] = new.token_ids
    table.num_tokens[new.slots] = new.ends
    table.num_passes[new.slots] += 1
    if np.count_nonzero(new.num_drafted_tokens):
        table.num_drafted_tokens[new.slots] += new.num_drafted_tokens
        _record_drafts(state, new)


def _record_drafts(state: SchedulerState, new: NewTokens) -> None:
    slots, kept, accounts = new.slots, new.num_accepted_tokens, state.accounts
    window_nodes, draft_positions, positions = new.nodes
    if window_nodes is None or state.config.drafter is not None:
        is_known = (new.draft_sources == PREDICTION) & (window_nodes is not None)
        if draft_positions is not None:
            is_known |= draft_positions != NO_POSITION
        others = (kept > 0) > is_known
        accounts.record_others(slots[others], new.draft_sources[others], kept[others])
        positions, kept = positions[is_known.repeat(kept)], kept * is_known
    accounts.record_kept(slots, kept, positions)
    is_rejected = new.num_drafted_tokens > kept
    if not np.count_nonzero(is_rejected):
        return
    if window_nodes is not None:
        is_cut = is_rejected & (new.draft_sources == PREDICTION)
        drafted = state.worker_windows.find_drafted(
            slots[is_cut], window_nodes[is_cut], new.num_drafted_tokens[is_cut]
        )
        accounts.record_drafted(*drafted)
    if draft_positions is not None:
        is_cut = is_rejected & (draft_positions != NO_POSITION)
        number = new.num_drafted_tokens[is_cut]
        looked_up = count_up(draft_positions[is_cut], number)
        accounts.record_drafted(slots[is_cut].repeat(number), looked_up)


def follow_windows(state: SchedulerState, new: NewTokens) -> None:
    """Compares the tokens with the windows; one that was wrong is not drafted from any more."""
    table, window_ends = state.table, new.window_ends
    if not np.count_nonzero(window_ends):
        return
    # A window that agrees has begun.
    inside = np.minimum(window_ends, new.ends) - new.starts
    has_window = inside > 0
    if not np.count_nonzero(has_window):
        return
    num_agreed = inside
    wrong = table.windows.expected.reshape(-1).take(new.cells) != new.token_ids
    if np.count_nonzero(wrong):
        # What lies after a window cannot be wrong.
        tokens = wrong.nonzero()[0]
        cells, rows = new.cells[tokens], new.find_rows(tokens)
        slots = new.slots[rows]
        is_inside = cells < table.windows.cells(slots, window_ends[rows])
        cells, rows = cells[is_inside], rows[is_inside]
        num_agreed = inside.copy()
        # Of several values for one row the last stays: that of its first wrong token.
        num_agreed[rows[::-1]] = (cells - new.first_cells[rows])[::-1]
        table.window_end[slots[is_inside]] = 0
    _learn_windows(state, new, has_window, inside, num_agreed)
    if table.windows.trees:
        _move_trees(state, new, num_agreed < inside)


def _learn_windows(
    state: SchedulerState,
    new: NewTokens,
    has_window: BoolArray,
    inside: Int32Array,
    num_agreed: Int32Array,
) -> None:
    """Learns how windows do: what was emitted tells as much where nothing was drafted.

    Args:
        state: The state.
        new: The tokens.
        has_window: Rows whose window goes on after their start [num_rows].
        inside: New tokens inside the window [num_rows].
        num_agreed: How many of them agree before the first that does not [num_rows].
    """
    slots, starts, cells = new.slots, new.starts, new.first_cells
    if state.config.drafter is not None:
        has_window = has_window & (new.draft_sources <= PREDICTION)
    if state.widths.goes_by_share:
        is_drafted = new.num_drafted_tokens > 0
        drafted = np.where(is_drafted, new.num_drafted_tokens, inside)[has_window]
        accepted = np.where(is_drafted, new.num_accepted_tokens, num_agreed)[has_window]
        state.widths.observe_drafts(slots[has_window], drafted, accepted)
    examined = inside if num_agreed is inside else np.minimum(num_agreed + 1, inside)
    if np.count_nonzero(has_window) < len(has_window):
        slots, starts, cells = slots[has_window], starts[has_window], cells[has_window]
        examined, num_agreed = examined[has_window], num_agreed[has_window]
    windows = state.table.windows
    hazards = windows.hazards_before
    estimated = hazards.take(cells + examined) - hazards.take(cells)
    is_valued = windows.is_valued.take(slots)
    is_first = starts == state.table.num_prompt_tokens.take(slots)
    state.widths.observe(slots, num_agreed, examined, estimated, is_valued, is_first)


def _move_trees(state: SchedulerState, new: NewTokens, has_left: BoolArray) -> None:
    """Moves trees on with their rows' tokens.

    Args:
        state: The state.
        new: The tokens.
        has_left: Rows that have left the likeliest path [num_rows].
    """
    table = state.table
    ends = np.cumsum(new.num_tokens)
    for row in np.flatnonzero(table.windows.is_tree[new.slots]).tolist():
        slot, end = int(new.slots[row]), int(ends[row])
        token_ids = new.token_ids[end - int(new.num_tokens[row]) : end]
        table.move_tree(slot, token_ids, is_likeliest=not has_left[row])
        state.weigh_window(slot)


def report_logprobs(
    state: SchedulerState, step: Plan, new: NewTokens, alive: BoolArray, result: StepResult
) -> tuple[list[ReportedLogprobs], dict[int, str]]:
    """Returns the log-probabilities of the tokens that are delivered.

    Each position of a prompt is reported once, in order, also where it is computed again.

    Args:
        state: The state.
        step: The plan.
        new: Its tokens, cut where requests end. Those that lack what they want end otherwise.
        alive: Which rows belong to requests that are not over [num_rows].
        result: The result.

    Returns:
        What is reported, and by slot what is wrong with requests that lack what they want.
    """
    reported: list[ReportedLogprobs] = []
    wrong: dict[int, str] = {}
    rows = {slot: row for row, slot in enumerate(new.slots.tolist())}
    for slot in step.slots[alive].tolist():
        if slot not in state.logprob_slots or slot in result.errors:
            continue
        request, logprobs = state.table.request(slot), result.logprobs.get(slot)
        number = int(new.num_tokens[rows[slot]]) if slot in rows else 0
        if logprobs is not None:
            first, end = logprobs.first_prompt_position, logprobs.end
            if logprobs.num_prompt_tokens and first <= request.num_reported_tokens + 1:
                num_skipped = min(request.num_reported_tokens + 1, end) - first
                request.num_reported_tokens = max(request.num_reported_tokens, end - 1)
            else:
                # Without those before them they are of no use.
                num_skipped = logprobs.num_prompt_tokens
            logprobs = logprobs.cut(num_skipped, number)
            if len(logprobs.logprobs):
                reported.append(ReportedLogprobs(request.owner, request.handle, logprobs))
        if number and _lacks(request, 0 if logprobs is None else logprobs.num_tokens, number):
            wrong[slot] = MISSING
            new.reasons.pop(rows[slot], None)
    return reported, wrong


def _lacks(request: Request, num_reported: int, num_tokens: int) -> bool:
    """Returns whether a request that gets tokens lacks what it wants."""
    wants_output = request.sampling.num_logprobs is not None
    return (wants_output and num_reported < num_tokens) or request.wants_prompt_logprobs


def report_positions(state: SchedulerState, new: NewTokens) -> list[ReportedPositions]:
    """Returns where accepted drafts were read from, to requests that want to know."""
    table = state.table
    reported: list[ReportedPositions] = []
    ends = np.cumsum(new.num_accepted_tokens)
    rows = (new.num_accepted_tokens > 0) & np.isin(new.slots, [*state.position_slots])
    for row in np.flatnonzero(rows).tolist():
        slot, end = int(new.slots[row]), int(ends[row])
        positions = new.nodes.accepted_positions[end - int(new.num_accepted_tokens[row]) : end]
        owner, handle = int(table.owner[slot]), int(table.handle[slot])
        reported.append(ReportedPositions(owner, handle, positions))
    return reported


def build_outputs(
    state: SchedulerState,
    new: NewTokens,
    errors: dict[int, str],
    logprobs: Sequence[ReportedLogprobs] = (),
    positions: Sequence[ReportedPositions] = (),
) -> StepOutputs:
    """Ends requests and returns what their owners get.

    Args:
        state: The state.
        new: The tokens, which were kept.
        errors: What went wrong, by slot, for requests that are not over.
        logprobs: How likely tokens were.
        positions: Where accepted drafts were read from.
    """
    table = state.table
    observed = _find_observed(state, new)
    observed_ids: list[str] = []
    earlier: dict[int, list[int]] = {}
    if len(observed):
        slots = new.slots[observed]
        observed_ids = [table.request_ids[slot] for slot in slots.tolist()]
        earlier = _find_earlier(state, new, observed)
        table.num_observed_tokens[slots] = table.num_tokens[slots]
    owners, handles = table.owner.take(new.slots), table.handle.take(new.slots)
    sources = new.draft_sources
    if new.nodes.draft_positions is not None:
        sources = np.where(new.nodes.draft_positions >= 0, PREDICTION, sources)
    ended = [
        finish(state, table.request(int(new.slots[row])), reason)
        for row, reason in new.reasons.items()
    ]
    for slot, message in errors.items():
        ended.append(finish(state, table.request(slot), FinishReason.ERROR, message))
    return StepOutputs(
        owners,
        handles,
        new.num_tokens,
        new.token_ids,
        new.num_accepted_tokens,
        sources,
        observed,
        observed_ids,
        earlier,
        ended,
        logprobs,
        positions,
    )


def _find_observed(state: SchedulerState, new: NewTokens) -> Int64Array:
    """Returns the rows of requests that go on and whose tokens proposers are sent now."""
    table, slots = state.table, new.slots
    if not table.num_followed:
        return NO_OUTPUTS.observed_rows
    lengths = table.num_tokens.take(slots)
    is_observed = is_due(
        table.gain.take(slots),
        table.num_predicted_tokens.take(slots),
        lengths - table.num_prompt_tokens.take(slots),
        lengths - table.num_observed_tokens.take(slots),
    )
    if new.reasons:
        is_observed[list(new.reasons)] = False
    return is_observed.nonzero()[0]


def _find_earlier(state: SchedulerState, new: NewTokens, rows: Int64Array) -> dict[int, list[int]]:
    """Returns tokens of earlier steps that proposers were not sent, by row."""
    table = state.table
    slots, ends = new.slots[rows], new.starts[rows]
    begins = table.num_observed_tokens[slots]
    return {
        int(rows[each]): table.token_ids[slots[each], begins[each] : ends[each]].tolist()
        for each in np.flatnonzero(begins < ends).tolist()
    }


def finish(
    state: SchedulerState, request: Request, reason: FinishReason, message: str = ""
) -> Ended:
    """Ends a request and returns its account."""
    if request.slot != NO_SLOT:
        state.accounts.close(request.slot, request)
        state.table.update(request)
        num_tokens = int(state.table.num_tokens[request.slot])
    else:
        num_tokens = len(request.token_ids)
    state.end(request)
    return make_end(request, num_tokens, reason, message)


def make_end(request: Request, num_tokens: int, reason: FinishReason, message: str) -> Ended:
    """Returns the account of a request that is over, `num_tokens` long."""
    by_source = list(request.num_accepted_by_source)
    num_before = request.num_prompt_tokens + request.num_given_tokens
    by_source[DraftSource.TARGET] = num_tokens - num_before - sum(by_source)
    finished = Finished(
        reason,
        message,
        by_source[DraftSource.PREDICTION],
        num_rejected_tokens(request),
        request.num_passes,
        tuple(by_source),
        request.num_drafted_tokens,
        request.num_cached_tokens or 0,
    )
    return Ended(request.owner, request.handle, request.request_id, finished)
