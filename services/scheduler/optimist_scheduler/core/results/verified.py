"""Brings what was verified of a step's drafts to the accounts."""

import numpy as np

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.requests.state import SchedulerState, StepInFlight
from optimist_scheduler.core.results.new_tokens import NewTokens
from optimist_scheduler.core.values.arrays import BoolArray, Int32Array
from optimist_scheduler.core.windows.window import NO_POSITION, Window


def record_drafts(state: SchedulerState, step: StepInFlight, new: NewTokens) -> None:
    """Records the drafts of a step, before windows move on with its tokens.

    Drafts of a chain lie on the planes of likeliest paths. A row whose window is a tree, or another
    one than when its step was planned, is walked through.

    Args:
        state: The state; the new tokens are part of it.
        step: The step.
        new: Its tokens.
    """
    placed, accounts = state.table.placed, state.accounts
    slots, drafted, kept = new.slots, new.num_drafted_tokens, new.num_accepted_tokens
    if state.config.drafter is not None:
        others = new.draft_sources != DraftSource.PREDICTION
        accounts.record_others(slots[others], new.draft_sources[others], kept[others])
        drafted, kept = drafted * ~others, kept * ~others
    is_walked = placed.numbers[slots] != new.window_numbers
    if placed.trees:
        is_walked |= placed.is_tree[slots]
    if is_walked.any():
        is_walked &= drafted > 0
        _record_walks(state, step, new, np.flatnonzero(is_walked).tolist())
        drafted, kept = drafted * ~is_walked, kept * ~is_walked
    cells = placed.cells(slots, new.starts)
    accounts.record_runs(slots, cells, kept)
    is_cut = drafted > kept
    if is_cut.any():
        slots, cells = slots[is_cut], (cells + kept)[is_cut]
        num_rejected = (drafted - kept)[is_cut]
        num_before = np.cumsum(num_rejected) - num_rejected
        of_row = np.arange(int(num_rejected.sum())) - np.repeat(num_before, num_rejected)
        places = np.repeat(cells, num_rejected) + of_row
        positions = placed.positions.reshape(-1).take(places, mode="clip")
        is_kept = np.zeros(len(positions), np.bool_)
        accounts.record_nodes(np.repeat(slots, num_rejected), positions, is_kept)


def find_kept_positions(
    state: SchedulerState, step: StepInFlight, new: NewTokens, row: int
) -> Int32Array:
    """Returns where the accepted drafts of a row stand in the predictions, -1 for none.

    Args:
        state: The state; the new tokens are part of it, and windows are as they were before.
        step: The step.
        new: Its tokens.
        row: A row with drafts from its window.
    """
    placed, slot = state.table.placed, int(new.slots[row])
    if placed.numbers[slot] != new.window_numbers[row] or placed.is_tree[slot]:
        positions, is_kept = _walk_row(state, step, new, row)
        return positions[is_kept]
    start, number = int(new.starts[row]), int(new.num_accepted_tokens[row])
    positions = placed.positions[slot, start : start + number].copy()
    # A worker may have drafted what the window does not say.
    positions[max(int(new.window_ends[row]) - start, 0) :] = NO_POSITION
    return positions


def _record_walks(
    state: SchedulerState, step: StepInFlight, new: NewTokens, rows: list[int]
) -> None:
    """Records the drafts of some rows: the first nodes behind the paths of their outputs."""
    if not rows:
        return
    walks = [_walk_row(state, step, new, row) for row in rows]
    sizes = [len(positions) for positions, _ in walks]
    state.accounts.record_nodes(
        np.repeat(new.slots[rows], sizes),
        np.concatenate([positions for positions, _ in walks]),
        np.concatenate([is_kept for _, is_kept in walks]),
    )


def _walk_row(
    state: SchedulerState, step: StepInFlight, new: NewTokens, row: int
) -> tuple[Int32Array, BoolArray]:
    """Returns the positions of a row's drafts, and which were kept."""
    slot, start = int(new.slots[row]), int(new.starts[row])
    num_drafted, num_kept = int(new.num_drafted_tokens[row]), int(new.num_accepted_tokens[row])
    window = _find_window(state, step, new, row)
    base = 0 if window is None else int(state.table.num_prompt_tokens[slot]) + window.base
    if window is not None and window.parents is None:
        positions = window.positions[max(start - base, 0) :][:num_drafted]
        if len(positions) == num_drafted:
            return positions, np.arange(num_drafted) < num_kept
    sequence = state.table.token_ids[slot, : start + num_kept]
    behind = window and window.pass_tokens(sequence[base:start])
    if behind is None:
        # The worker drafted what the window does not say; all that is known is what was kept.
        return np.full(num_kept, NO_POSITION, np.int32), np.ones(num_kept, np.bool_)
    return _walk(behind, sequence[start:], num_drafted)


def _find_window(
    state: SchedulerState, step: StepInFlight, new: NewTokens, row: int
) -> Window | None:
    """Returns the window that was in force when the row was planned."""
    placed, slot = state.table.placed, int(new.slots[row])
    if placed.numbers[slot] == new.window_numbers[row] and slot in placed.trees:
        return placed.trees[slot].window
    return step.windows[slot]


def _walk(window: Window, kept: Int32Array, num_drafted: int) -> tuple[Int32Array, BoolArray]:
    """Returns the positions of the drafts of a window that begins here, and which were kept."""
    path = window.find_path(kept.tolist())
    positions = window.positions[:num_drafted]
    is_kept = np.zeros(len(positions), np.bool_)
    inside = [node for node in path if node < len(positions)]
    is_kept[inside] = True
    num_unknown = len(kept) - len(inside)
    if num_unknown == 0:
        return positions, is_kept
    # Again, what was kept and is not of the window.
    unknown = np.full(num_unknown, NO_POSITION, np.int32)
    return np.concatenate([positions, unknown]), np.concatenate(
        [is_kept, np.ones(num_unknown, np.bool_)]
    )
