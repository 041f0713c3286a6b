"""Which running rows run, which requests get a slot, and what each gets of tokens and blocks."""

from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, Int32Array, SlotArray
from optimist_scheduler.core.requests.plan import NO_SLOTS, Admission, ScheduleView
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.table import Rows
from optimist_scheduler.core.width.acceptance import Drafter

SELECTIVE_FACTOR = 8
"""How many times as many drafts as pay on the average a lookup may make where it is sure."""


@dataclass(slots=True)
class PlannedRows:
    """Running rows; one with no known token does not run."""

    slots: SlotArray
    num_known_tokens: Int32Array
    num_draft_tokens: Int32Array
    num_new_blocks: Int32Array
    num_tokens: int
    """Tokens of all rows, drafts included."""
    num_blocks: int
    """New blocks of all rows."""
    num_repeats: int = 0
    """How often all rows may run again."""
    is_short: bool = False
    """Whether rows do not run because the free blocks do not hold them."""

    def drop_idle(self) -> "PlannedRows":
        """Returns the rows that run: the others have no tokens, and need no blocks."""
        runs = self.num_known_tokens.nonzero()[0]
        if len(runs) == len(self.slots):
            return self
        return PlannedRows(
            self.slots.take(runs),
            self.num_known_tokens.take(runs),
            self.num_draft_tokens.take(runs),
            self.num_new_blocks.take(runs),
            self.num_tokens,
            self.num_blocks,
            self.num_repeats,
            self.is_short,
        )

    def select(self, chosen: BoolArray) -> "PlannedRows":
        """Returns the rows that a mask chooses."""
        slots, known = self.slots[chosen], self.num_known_tokens[chosen]
        drafts, num_new = self.num_draft_tokens[chosen], self.num_new_blocks[chosen]
        num_tokens = int(np.add.reduce(known + drafts))
        num_blocks = int(np.add.reduce(num_new))
        return PlannedRows(
            slots, known, drafts, num_new, num_tokens, num_blocks, self.num_repeats, self.is_short
        )


def plan_rows(
    view: ScheduleView, slots: SlotArray, budget: int, num_free: int, demand: int = 0
) -> PlannedRows | None:
    """Plans running rows; None if the free blocks do not hold their known tokens.

    Args:
        view: The state.
        slots: Running slots, the most urgent first.
        budget: Tokens that the rows may have, at least one for each.
        num_free: Blocks that they may have.
        demand: Tokens that waiting requests would take.
    """
    rows = view.table.gather(slots)
    known, drafts, num_tokens = _share_budget(view, slots, rows, budget, demand)
    num_repeats = 0
    if view.config.num_repeats and not view.waiting:
        emits = known == rows.num_tokens + rows.num_output_placeholders - rows.num_computed_tokens
        num_repeats = view.config.num_repeats if (emits | (known == 0)).all() else 0
    end = rows.num_computed_tokens + known
    if view.config.num_repeats:
        end += rows.num_lease_tokens
    worst = end + drafts
    if num_repeats:
        worst += num_repeats * (1 + drafts) * (known > 0)
    num_new = _lacking_blocks(view, slots, rows, worst)
    num_blocks = int(np.add.reduce(num_new))
    if num_blocks <= num_free:
        return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, num_repeats)
    num_new = _lacking_blocks(view, slots, rows, end)
    num_free -= int(num_new.sum())
    if num_free < 0:
        return None
    drafts, num_draft_blocks = _fit_drafts(view, slots, end, drafts, num_new, num_free)
    num_new = num_new + num_draft_blocks
    num_tokens = int(known.sum()) + int(drafts.sum())
    return PlannedRows(slots, known, drafts, num_new, num_tokens, int(num_new.sum()))


def plan_scarce_rows(view: ScheduleView, slots: SlotArray, num_free: int) -> PlannedRows:
    """Plans those rows, without drafts, that the free blocks hold; the most urgent get theirs."""
    known, num_new = _need_of_known_tokens(view, slots)
    fits = (num_new == 0) | (np.cumsum(num_new) <= num_free)
    is_short = bool((~fits & (known > 0)).any())
    known, drafts, num_new = known * fits, np.zeros_like(known), num_new * fits
    num_tokens, num_blocks = int(known.sum()), int(num_new.sum())
    return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, is_short=is_short)


def count_needed_blocks(view: ScheduleView) -> Int32Array:
    """Returns how many blocks each running row lacks to hold its known tokens [num_running]."""
    return _need_of_known_tokens(view, view.running)[1]


def _need_of_known_tokens(view: ScheduleView, slots: SlotArray) -> tuple[Int32Array, Int32Array]:
    """Returns the known tokens of each slot, and the blocks that it lacks to hold them."""
    rows = view.table.gather(slots)
    known, *_ = _share_budget(view, slots, rows, view.config.max_num_batched_tokens, 0)
    end = rows.num_computed_tokens + rows.num_lease_tokens + known
    return known, _lacking_blocks(view, slots, rows, end)


def _share_budget(
    view: ScheduleView, slots: SlotArray, rows: Rows, budget: int, demand: int
) -> tuple[Int32Array, Int32Array, int]:
    """Returns known tokens and drafts per row, as far as the token budget goes, and their sum.

    Each row gets one known token. Prompts, those of waiting requests too, get `prefill_share` of
    the rest and what drafts leave of it; drafts get what prompts leave.
    """
    assumed = rows.num_tokens + rows.num_output_placeholders
    left = assumed - rows.num_computed_tokens
    runs = _find_rows_to_run(view, slots, rows)
    total = int(np.add.reduce(left))
    windows, drafts = view.table.windows, np.zeros(len(left), np.int32)
    if np.count_nonzero(rows.window_end):
        # What is in flight may already reach the length limit.
        ahead = np.minimum(rows.window_end, rows.max_length - 1) - assumed
        drafts = np.minimum(np.maximum(ahead, 0), rows.draft_width)
    if windows.num_trees:
        drafts = _take_trees(view, slots, rows, drafts)
    if view.widths.goes_by_value and windows.num_valued:
        drafts = view.widths.choose_worth(
            slots,
            total,
            drafts,
            lambda depths: windows.count_worth(slots, assumed, drafts, depths),
            assumed,
        )
    if view.config.drafter is not None:
        has_window = (rows.window_end > assumed) | (drafts > 0)
        num_left = budget - total - int(np.add.reduce(drafts))
        from_drafter = _share_drafter(view, slots, rows, view.config.drafter, has_window, num_left)
        drafts = np.where(has_window, drafts, from_drafter)
    if np.count_nonzero(runs) < len(runs):
        left, drafts = left * runs, drafts * runs
        total = int(np.add.reduce(left))
    num_drafts = int(np.add.reduce(drafts))
    if total + num_drafts + demand <= budget:
        return left, drafts, total + num_drafts

    first = np.minimum(left, 1)
    extra = budget - int(first.sum())
    more = left - first
    # A prompt does not hold its own tokens back for its drafts.
    num_drafts = int(drafts[more == 0].sum())
    quota = max(int(view.config.prefill_share * extra), extra - num_drafts)
    granted = np.clip(quota - (np.cumsum(more) - more), 0, more)
    known = first + granted
    num_granted = int(granted.sum())
    extra -= num_granted + min(demand, quota - num_granted)
    # After a prompt that is not computed to its end there is nothing to verify.
    drafts = drafts * (known == left)
    drafts = np.clip(extra - (np.cumsum(drafts) - drafts), 0, drafts)
    num_tokens = int(known.sum()) + int(drafts.sum())
    return known.astype(np.int32), drafts.astype(np.int32), num_tokens


def _share_drafter(
    view: ScheduleView,
    slots: SlotArray,
    rows: Rows,
    drafter: Drafter,
    has_window: BoolArray,
    num_left: int,
) -> Int32Array:
    """Returns the drafts that the worker's drafter may make for each row [num_rows].

    Args:
        view: The state.
        slots: The rows'.
        rows: Their columns.
        drafter: The drafter.
        has_window: Rows that draft from their windows as far as is known [num_rows].
        num_left: Tokens of the budget that nobody has.
    """
    # It drafts from where the row really is, whatever is in flight.
    room = np.maximum(rows.max_length - 1 - rows.num_tokens - rows.num_output_placeholders, 0)
    width: Int32Array = np.minimum(room, rows.drafter_width)
    looks_up = ~has_window & (width > 0)
    num_rows = int(np.count_nonzero(looks_up))
    if not drafter.is_selective or not num_rows:
        return width
    # It makes only those that are likely: more than are expected of it may be allowed.
    most = np.minimum(view.widths.find_limits(slots), min(drafter.max_tokens, num_left // num_rows))
    allowed = np.minimum(np.minimum(width * SELECTIVE_FACTOR, most), room)
    width[looks_up] = np.maximum(width, allowed)[looks_up]
    return width


def _take_trees(view: ScheduleView, slots: SlotArray, rows: Rows, drafts: Int32Array) -> Int32Array:
    """Returns the drafts of rows, of trees as many as they have nodes at most.

    The worker drafts from where a row really is, which of a tree is not far after where it was:
    most of what is in flight are nodes side by side.
    """
    windows = view.table.windows
    least = rows.num_tokens + rows.num_emits_in_flight
    left = (rows.window_end - least + windows.num_side_nodes[slots]) * (rows.window_end > least)
    room = rows.max_length - 1 - rows.num_tokens - rows.num_output_placeholders
    of_trees = np.minimum(np.maximum(np.minimum(left, room), 0), rows.draft_width)
    return np.where(windows.is_tree[slots], of_trees, drafts)


def _find_rows_to_run(view: ScheduleView, slots: SlotArray, rows: Rows) -> BoolArray:
    # Each plan in flight that emits brings at least one token.
    runs: BoolArray = rows.num_tokens + rows.num_emits_in_flight < rows.max_length
    num_stages = view.config.num_pipeline_stages
    if num_stages > 1:
        # A request is in one stage at a time, and each stage gets its part of the requests.
        runs &= rows.num_plans_in_flight - np.isin(slots, view.settling) <= 0
        runs &= np.cumsum(runs) <= -(-len(view.running) // num_stages)
    return runs


def _lacking_blocks(
    view: ScheduleView, slots: SlotArray, rows: Rows, lengths: Int32Array
) -> Int32Array:
    """Returns how many blocks each slot lacks to hold `lengths` tokens, or its longest."""
    block_size = view.config.block_size
    wanted = (np.minimum(lengths, rows.max_length) + (block_size - 1)) // block_size
    lacking: Int32Array = np.maximum(wanted - view.blocks.num_blocks.take(slots), 0)
    return lacking


def _fit_drafts(
    view: ScheduleView,
    slots: SlotArray,
    ends: Int32Array,
    drafts: Int32Array,
    num_new: Int32Array,
    num_free: int,
) -> tuple[Int32Array, Int32Array]:
    """Cuts drafts to the free blocks; returns them and the blocks that they need besides."""
    block_size = view.config.block_size
    held = (view.blocks.num_blocks[slots] + num_new) * block_size
    room = np.maximum(held - ends, 0)
    wanted = -(-np.maximum(drafts - room, 0) // block_size)
    granted = np.clip(num_free - (np.cumsum(wanted) - wanted), 0, wanted).astype(np.int32)
    return np.minimum(drafts, room + granted * block_size).astype(np.int32), granted


def count_demand(view: ScheduleView) -> int:
    """Returns how many tokens waiting requests could use in the next step."""
    if view.table.num_free_slots == 0:
        return 0
    demand, most = 0, view.config.max_num_batched_tokens
    for request in view.waiting:
        demand += len(request.token_ids)
        if demand >= most:
            return most
    return demand


def admit(view: ScheduleView, num_running: int, budget: int, num_free: int) -> list[Admission]:
    """Takes requests from the front of the waiting ones while slots, blocks and budget last.

    A request gets the blocks of all its known tokens at once, so that no prefill is begun that
    cannot end. Each running row keeps one free block in reserve: without it, an admission would
    often be preempted by the next decode step.
    """
    config = view.config
    admitted: list[Admission] = []
    num_free_slots = view.table.num_free_slots
    for request in view.waiting:
        if budget <= 0 or len(admitted) == num_free_slots:
            break
        cached, num_taken = match_prefix(view, request)
        num_tokens = len(request.token_ids)
        num_new = config.num_blocks_for(num_tokens) - len(cached)
        num_spare = num_free - num_taken - num_new - num_running
        if num_spare < 0:
            break
        known = min(num_tokens - len(cached) * config.block_size, budget)
        # A prompt that is not computed to its end has used the budget up: no drafts.
        num_before = config.max_num_batched_tokens - budget
        drafts = _count_drafts(view, request, num_before + known, budget - known, num_spare)
        num_new = config.num_blocks_for(num_tokens + drafts) - len(cached)
        admitted.append(Admission(request, request.token_ids, cached, known, drafts, num_new))
        budget -= known + drafts
        num_free -= num_taken + num_new
        num_running += 1
    return admitted


def match_prefix(view: ScheduleView, request: Request) -> tuple[Int32Array, int]:
    """Returns the cached blocks a request can begin with, and how many of them count as free."""
    # The last token is always computed: its logits choose the next one.
    num_tokens = len(request.token_ids) - 1
    if request.wants_prompt_logprobs:
        # What comes after a token is reported only when that is computed.
        num_tokens = min(num_tokens, request.num_reported_tokens)
    most = num_tokens // view.config.block_size
    cached = view.blocks.match(request.block_hashes[:most])
    return cached, view.blocks.num_evictable(cached)


def find_victims(view: ScheduleView, num_free: int) -> SlotArray:
    """Returns running slots that make room for the next waiting request, the least urgent first.

    Only requests of lower priority give way, no more of them than needed, and none if all of them
    together would not do.
    """
    head = next(iter(view.waiting), None)
    victims: list[int] = []
    if head is None:
        return NO_SLOTS
    cached, num_taken = match_prefix(view, head)
    num_wanted = view.config.num_blocks_for(len(head.token_ids)) - len(cached) + num_taken
    candidates = view.running.tolist()
    while True:
        leaving = np.concatenate([view.fenced, np.array(victims, np.int64)])
        num_spare = num_free + view.blocks.num_freed_by(leaving) - num_wanted - len(candidates)
        if num_spare >= 0 and view.table.num_free_slots + len(leaving) > 0:
            return np.array(victims, np.int64)
        if not candidates or not _gives_way(view.table.request(candidates[-1]), head):
            return NO_SLOTS
        victims.append(candidates.pop())


def _gives_way(request: Request, other: Request) -> bool:
    return (other.is_promoted, -other.priority) > (request.is_promoted, -request.priority)


def _count_drafts(
    view: ScheduleView, request: Request, num_before: int, budget: int, num_spare: int
) -> int:
    num_tokens = len(request.token_ids)
    window = request.window and request.window.follow(request.token_ids, request.num_prompt_tokens)
    if window is not None and window.num_nodes:
        width = view.widths.first(request.max_draft_tokens, window, num_before)
    else:
        width = view.widths.first_of_drafter(
            request.max_draft_tokens, uses_lookup=request.uses_lookup
        )
    block_size = view.config.block_size
    room = (view.config.num_blocks_for(num_tokens) + num_spare) * block_size - num_tokens
    return max(0, min(width, request.max_length - num_tokens - 1, budget, room))
