"""Which continuations the drafts of windows with alternatives followed, for their accounts."""

from collections.abc import Mapping

import numpy as np

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.arrays import Int32Array
from optimist_scheduler.core.new_tokens import NewTokens
from optimist_scheduler.core.state import SchedulerState
from optimist_scheduler.core.window import Window

_Piece = tuple[int, int, int]
"""Position in the prediction, drafts from there on, how many of them were kept."""


def record_branches(
    state: SchedulerState, new: NewTokens, branches: Mapping[int, Window], offsets: Int32Array
) -> None:
    """Records the drafts of a step in which some windows had alternatives.

    Of the continuation that was followed, what was accepted and the draft behind it were verified.
    Of the others nothing is counted: how many drafts each of them had is the worker's affair.

    Args:
        state: The state; the new tokens are part of it.
        new: The tokens.
        branches: The windows with alternatives that the step drafted from, by slot.
        offsets: Position in the prediction of each row's first draft, if it came from its window
            [num_rows].
    """
    pieces: list[tuple[int, _Piece]] = []
    is_plain = np.ones(len(new.slots), np.bool_)
    for row in np.flatnonzero(new.draft_sources == DraftSource.PREDICTION).tolist():
        window = branches.get(int(new.slots[row]))
        if window is not None:
            is_plain[row] = False
            pieces += [(row, piece) for piece in _find_pieces(state, new, row, window)]
    rows = np.array([row for row, _ in pieces], np.int64)
    columns = np.array([piece for _, piece in pieces], np.int32).reshape(-1, 3).T
    state.accounts.record(
        np.concatenate([new.slots[is_plain], new.slots[rows]]),
        np.concatenate([new.draft_sources[is_plain], new.draft_sources[rows]]),
        np.concatenate([offsets[is_plain], columns[0]]),
        np.concatenate([new.num_drafted_tokens[is_plain], columns[1]]),
        np.concatenate([new.num_accepted_tokens[is_plain], columns[2]]),
    )


def _find_pieces(state: SchedulerState, new: NewTokens, row: int, window: Window) -> list[_Piece]:
    """Returns what of the prediction a row's drafts were: up to a departure, and from there on."""
    slot, start = int(new.slots[row]), int(new.starts[row])
    num_accepted = int(new.num_accepted_tokens[row])
    num_prompt_tokens = int(state.table.num_prompt_tokens[slot])
    sequence = state.table.token_ids[slot, : start + num_accepted]
    followed = window.follow(sequence, num_prompt_tokens)
    if followed is None:
        # The worker drafted what the window does not say; all that is known is how much was kept.
        return [(0, 0, num_accepted)]
    place = start - num_prompt_tokens
    num_before = min(max(followed.base - place, 0), num_accepted)
    pieces = [(window.prediction_offset + place - window.base, num_before, num_before)]
    place += num_before
    first, kept = place - followed.base, num_accepted - num_before
    is_cut = num_accepted == int(new.num_drafted_tokens[row])
    drafted = min(kept + (not is_cut), len(followed.token_ids) - first)
    return [*pieces, (followed.prediction_offset + first, max(drafted, kept), kept)]
