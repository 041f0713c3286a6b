"""What runs next: decided from a view of the state, without changing it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.blocks import BlockPool
from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.requests import Int32Array, Request, RequestTable


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """What a decision is made from; nothing of it is changed."""

    limits: Limits
    table: RequestTable
    blocks: BlockPool
    running: Int32Array
    """Slots in the order of admission [num_running]."""
    waiting: Iterable[Request]
    """Requests without a slot, the next one first."""


@dataclass(frozen=True, slots=True)
class AdmittedRow:
    """A request that takes a slot, and its first row."""

    request: Request
    num_known_tokens: int
    num_draft_tokens: int
    num_new_blocks: int


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """The rows of the next step."""

    preempted: Int32Array
    """Slots that lose their blocks, the most recently admitted first."""
    slots: Int32Array
    """Running rows [num_rows]."""
    num_known_tokens: Int32Array
    """Known tokens to compute per row."""
    num_draft_tokens: Int32Array
    """Most drafts behind them per row."""
    num_new_blocks: Int32Array
    """Blocks to append per row."""
    admitted: list[AdmittedRow]
    """Rows of requests that take a slot, behind the running rows."""


def compute_schedule(view: ScheduleView) -> ScheduleDecision:
    """Decides which rows run, with how many known tokens, drafts and new blocks each.

    Running requests come first. Each gets one token, then the rest of its known tokens and its
    drafts while the token budget lasts, in the order of admission. If the free blocks do not hold
    the known tokens, the most recently admitted requests are preempted, never the oldest; drafts
    get only what is left. Waiting requests are admitted first come, first served.
    """
    known, drafts = _share_budget(view)
    running, num_free = view.running, view.blocks.num_free
    num_new = _blocks_for(view, view.table.num_computed_tokens[running] + known, running)
    kept = len(running)
    while kept > 1 and int(num_new[:kept].sum()) > num_free:
        kept -= 1
        num_free += int(view.blocks.num_blocks[running[kept]])
    preempted = running[kept:][::-1]
    running, known, drafts, num_new = running[:kept], known[:kept], drafts[:kept], num_new[:kept]

    num_free -= int(num_new.sum())
    drafts, num_draft_blocks = _fit_drafts(view, running, known, drafts, num_new, num_free)
    num_free -= int(num_draft_blocks.sum())
    budget = view.limits.max_num_batched_tokens - int(known.sum()) - int(drafts.sum())
    admitted = [] if len(preempted) else _admit(view, kept, budget, num_free)
    rows = known > 0
    return ScheduleDecision(
        preempted,
        running[rows],
        known[rows],
        drafts[rows],
        (num_new + num_draft_blocks)[rows],
        admitted,
    )


def _share_budget(view: ScheduleView) -> tuple[Int32Array, Int32Array]:
    """Returns known tokens and drafts per running row, as far as the token budget goes."""
    table, running = view.table, view.running
    assumed = table.num_tokens[running] + table.num_output_placeholders[running]
    # What is in flight may already reach the length limit.
    remaining = table.max_length[running] - assumed
    left = np.where(remaining > 0, assumed - table.num_computed_tokens[running], 0)
    ahead = np.minimum(table.window_end[running] - assumed, remaining - 1)
    wanted_drafts = np.clip(ahead, 0, view.limits.num_speculative_tokens)

    budget = view.limits.max_num_batched_tokens
    first = np.minimum(left, 1)
    first[budget:] = 0
    more = np.where(first > 0, left - first + wanted_drafts, 0)
    before = np.cumsum(more) - more
    granted = np.clip(budget - int(first.sum()) - before, 0, more)
    known = first + np.minimum(granted, left - first)
    return known.astype(np.int32), (granted - (known - first)).astype(np.int32)


def _blocks_for(view: ScheduleView, lengths: Int32Array, slots: Int32Array) -> Int32Array:
    """Returns how many blocks each slot lacks to hold `lengths` tokens."""
    wanted: Int32Array = -(-lengths // view.limits.block_size)
    lacking: Int32Array = np.maximum(wanted - view.blocks.num_blocks[slots], 0)
    return lacking


def _fit_drafts(
    view: ScheduleView,
    slots: Int32Array,
    known: Int32Array,
    drafts: Int32Array,
    num_new: Int32Array,
    num_free: int,
) -> tuple[Int32Array, Int32Array]:
    """Cuts drafts to the free blocks; returns them and the blocks that they need besides."""
    block_size = view.limits.block_size
    held = (view.blocks.num_blocks[slots] + num_new) * block_size
    room = held - view.table.num_computed_tokens[slots] - known
    wanted = -(-np.maximum(drafts - room, 0) // block_size)
    before = np.cumsum(wanted) - wanted
    granted = np.clip(num_free - before, 0, wanted).astype(np.int32)
    return np.minimum(drafts, room + granted * block_size), granted


def _admit(view: ScheduleView, num_running: int, budget: int, num_free: int) -> list[AdmittedRow]:
    """Takes requests from the front of the waiting ones while slots, blocks and budget last.

    A request gets the blocks of all its known tokens at once, so that no prefill is begun that
    cannot end. Each running row keeps one free block in reserve: without it, an admission would
    often be preempted by the next decode step.
    """
    limits, admitted = view.limits, list[AdmittedRow]()
    num_free_slots = view.table.num_free_slots
    for request in view.waiting:
        num_tokens = len(request.token_ids)
        num_spare = num_free - limits.num_blocks_for(num_tokens)
        if num_running > 0:
            num_spare -= num_running
        if budget <= 0 or len(admitted) == num_free_slots or num_spare < 0:
            break
        known = min(num_tokens, budget)
        # A prompt that is not computed to its end has used the budget up: no drafts.
        drafts = _admission_drafts(limits, request, budget - known, num_spare)
        num_blocks = limits.num_blocks_for(num_tokens + drafts)
        admitted.append(AdmittedRow(request, known, drafts, num_blocks))
        budget -= known + drafts
        num_free -= num_blocks
        num_running += 1
    return admitted


def _admission_drafts(limits: Limits, request: Request, budget: int, num_spare: int) -> int:
    window = request.usable_window
    if window is None:
        return 0
    num_tokens = len(request.token_ids)
    room = (limits.num_blocks_for(num_tokens) + num_spare) * limits.block_size - num_tokens
    ahead = window.base + len(window.token_ids) - request.num_output_tokens
    most = min(limits.num_speculative_tokens, request.max_length - num_tokens - 1)
    return max(0, min(most, budget, room, ahead))
