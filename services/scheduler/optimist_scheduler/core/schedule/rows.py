"""Which running rows run, which requests get a slot, and what each gets of tokens and blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, Int32Array, SlotArray
from optimist_scheduler.core.requests.plan import NO_SLOTS, Admission
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Rows

SELECTIVE_FACTOR = 8
"""How many times as many drafts as pay on the average a lookup may make where it is sure."""
MAX_CANDIDATES = 64
"""Waiting requests that a decision looks at."""


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
    is_short: bool = False
    """Whether rows do not run because the free blocks do not hold them."""
    shares: Sequence[int] = ()
    """Known tokens that candidates may compute beside these rows [num_candidates]."""

    def select(self, chosen: BoolArray) -> "PlannedRows":
        """Returns the rows that a mask chooses."""
        indices = chosen.nonzero()[0]
        if len(indices) == len(self.slots):
            return self
        slots, known = self.slots.take(indices), self.num_known_tokens.take(indices)
        drafts, num_new = self.num_draft_tokens.take(indices), self.num_new_blocks.take(indices)
        num_tokens = int(np.add.reduce(known + drafts))
        num_blocks = int(np.add.reduce(num_new))
        return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, self.is_short)


def plan_rows(
    state: SchedulerState,
    slots: SlotArray,
    budget: int,
    num_free: int,
    candidates: Sequence[Admission] = (),
) -> PlannedRows | None:
    """Plans running rows; None if the free blocks do not hold their known tokens."""
    rows = state.table.gather(slots)
    known, drafts, num_tokens, shares = _share_budget(state, rows, budget, candidates)
    end = rows.num_computed_tokens + known
    num_new = _lacking_blocks(state, rows, end + drafts)
    num_blocks = int(np.add.reduce(num_new))
    if num_blocks <= num_free:
        return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, shares=shares)
    num_new = _lacking_blocks(state, rows, end)
    num_free -= int(num_new.sum())
    if num_free < 0:
        return None
    drafts, num_draft_blocks = _fit_drafts(state, slots, end, drafts, num_new, num_free)
    num_new = num_new + num_draft_blocks
    num_tokens = int(known.sum()) + int(drafts.sum())
    return PlannedRows(slots, known, drafts, num_new, num_tokens, int(num_new.sum()), shares=shares)


def plan_scarce_rows(state: SchedulerState, slots: SlotArray, num_free: int) -> PlannedRows:
    """Plans those rows, without drafts, that the free blocks hold; the most urgent get theirs."""
    known, num_new = _need_of_known_tokens(state, slots)
    fits = (num_new == 0) | (np.cumsum(num_new) <= num_free)
    is_short = bool((~fits & (known > 0)).any())
    known, drafts, num_new = known * fits, np.zeros_like(known), num_new * fits
    num_tokens, num_blocks = int(known.sum()), int(num_new.sum())
    return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, is_short=is_short)


def count_needed_blocks(state: SchedulerState) -> Int32Array:
    """Returns how many blocks each running row lacks to hold its known tokens [num_running]."""
    return _need_of_known_tokens(state, state.running)[1]


def _need_of_known_tokens(state: SchedulerState, slots: SlotArray) -> tuple[Int32Array, Int32Array]:
    """Returns the known tokens of each slot, and the blocks that it lacks to hold them."""
    rows = state.table.gather(slots)
    known, *_ = _share_budget(state, rows, state.config.max_num_batched_tokens, ())
    return known, _lacking_blocks(state, rows, rows.num_computed_tokens + known)


def _share_budget(
    state: SchedulerState, rows: Rows, budget: int, candidates: Sequence[Admission]
) -> tuple[Int32Array, Int32Array, int, list[int]]:
    """Returns known tokens and drafts per row, their sum, and known tokens per candidate.

    Each row gets one known token. Prompts, those of candidates too, share `prefill_share` of the
    rest and what drafts leave of it, see `share_prompts`; drafts get what prompts leave.
    """
    assumed = rows.assumed_length
    left = assumed - rows.num_computed_tokens
    total = int(np.add.reduce(left))
    drafts = _choose_drafts(state, rows, assumed, left, total, budget)
    runs = _find_rows_to_run(state, rows)
    if np.count_nonzero(runs) < len(runs):
        left, drafts = left * runs, drafts * runs
        total = int(np.add.reduce(left))
    num_drafts = int(np.add.reduce(drafts))
    shares = [candidate.num_left_tokens for candidate in candidates]
    if total + num_drafts + sum(shares) <= budget:
        return left, drafts, total + num_drafts, shares

    first = np.minimum(left, 1)
    extra = budget - int(first.sum())
    more = left - first
    quota = max(int(state.config.prefill_share * extra), extra - num_drafts)
    prompts = more.nonzero()[0]
    requests = [state.table.request(slot) for slot in rows.slots[prompts].tolist()]
    requests += [candidate.request for candidate in candidates]
    granted = share_prompts(
        quota, [request.order for request in requests], [*more[prompts].tolist(), *shares]
    )
    known = first.astype(np.int32)
    known[prompts] += np.array(granted[: len(prompts)], np.int32)
    shares = granted[len(prompts) :]
    extra -= sum(granted)
    # After a prompt that is not computed to its end there is nothing to verify.
    drafts = drafts * (known == left)
    drafts = np.clip(extra - (np.cumsum(drafts) - drafts), 0, drafts)
    num_tokens = int(known.sum()) + int(drafts.sum())
    return known, drafts.astype(np.int32), num_tokens, shares


def _choose_drafts(
    state: SchedulerState,
    rows: Rows,
    assumed: Int32Array,
    left: Int32Array,
    total: int,
    budget: int,
) -> Int32Array:
    """Returns the drafts that rows would have in a pass with room for them [num_rows].

    `assumed` are their lengths, `left` their known tokens that are not computed, `total` all of
    these together.
    """
    # Below 0 where what is in flight may already reach the length limit.
    room = rows.max_length - 1 - assumed
    # Not beside the end of a prompt, see `DraftWidths.first`.
    is_decoding = left <= 1
    drafts = _choose_of_windows(state, rows, assumed, room, is_decoding, total)
    has_forms = np.count_nonzero(rows.form_width) > 0
    if state.config.drafter is None and not has_forms:
        return drafts
    room = np.maximum(room, 0)
    has_window = (rows.window_end > assumed) | (drafts > 0)
    most = np.zeros_like(drafts)
    if has_forms:
        most = _find_most_of_form(state, rows.form_width * (is_decoding & ~has_window), total)
        beside = np.minimum(rows.form_width, state.config.form_beside) * is_decoding
        limits = np.minimum(state.widths.limits.take(rows.slots), room)
    num_left = budget - total - int(np.add.reduce(drafts))
    made = _share_made(state, rows, most, room, has_window, num_left)
    if has_forms:
        drafts = np.minimum(drafts + beside, np.maximum(limits, drafts))
    return np.where(has_window, drafts, made)


def _choose_of_windows(
    state: SchedulerState,
    rows: Rows,
    assumed: Int32Array,
    room: Int32Array,
    is_decoding: BoolArray,
    total: int,
) -> Int32Array:
    """Returns the drafts that rows have from their windows, and that pay [num_rows]."""
    windows, slots, drafts = state.table.windows, rows.slots, np.zeros(len(room), np.int32)
    if np.count_nonzero(rows.window_end):
        ahead = np.minimum(rows.window_end - assumed, room)
        drafts = np.minimum(np.maximum(ahead, 0), rows.draft_width)
    if windows.num_trees:
        # The worker drafts from where a row really is, which of a tree is not far after where it
        # was: most of what is in flight are nodes side by side.
        least = rows.least_length
        ahead = (rows.window_end - least + windows.num_side_nodes[slots]) * (
            rows.window_end > least
        )
        of_trees = np.minimum(np.maximum(np.minimum(ahead, room), 0), rows.draft_width)
        drafts = np.where(windows.is_tree[slots], of_trees, drafts)
    if not state.widths.counts_costs or not np.count_nonzero(drafts):
        return drafts
    most = drafts * is_decoding
    return state.widths.choose_paying(
        slots,
        total,
        most,
        lambda hazards: windows.planes.count_worth(slots, assumed, most, hazards),
        assumed,
        windows.find_first_hazards(slots, assumed),
    )


def _find_most_of_form(state: SchedulerState, most: Int32Array, total: int) -> Int32Array:
    """Returns the drafts that may come from the form of each row's answer [num_rows].

    `most` are there; a pass has `total` tokens without drafts.
    """
    num_drafts = int(np.add.reduce(most))
    if not state.config.pads_passes or not num_drafts:
        return most
    # They take their time whether they are made or not: at most that of a token of each row.
    threshold = state.widths.find_threshold(len(most), total, num_drafts)
    return most * np.int32(threshold * num_drafts <= np.count_nonzero(most))


def _share_made(
    state: SchedulerState,
    rows: Rows,
    most: Int32Array,
    room: Int32Array,
    has_window: BoolArray,
    num_left: int,
) -> Int32Array:
    """Returns the drafts that the worker itself may make for each row [num_rows].

    They go on from where the row really is, whatever is in flight. `most` may come from the form of
    its answer; `num_left` tokens of the pass are left for all of them.
    """
    width: Int32Array = np.minimum(room, rows.drafter_width)
    drafter = state.config.drafter
    # Only those that are likely are made: more than are expected may be allowed.
    if drafter is not None and state.config.looks_up_selectively:
        looked_up = np.minimum(width * SELECTIVE_FACTOR, state.widths.limits.take(rows.slots))
        most = np.maximum(most, np.minimum(looked_up, drafter.max_tokens) * ~has_window)
    if num_rows := int(np.count_nonzero(most)):
        width = np.maximum(width, np.minimum(np.minimum(most, num_left // num_rows), room))
    return width


def share_prompts(
    quota: int, orders: Sequence[tuple[bool, int, int]], lengths: Sequence[int]
) -> list[int]:
    """Returns how many tokens of a pass each prompt gets; all together as many as there are.

    Half of them go to prompts in their order, so that each is computed in at most twice the time
    that those before it and itself take. The other half goes to the shortest among the most urgent
    ones, so that a short one does not wait for all of a long one. Of equal ones the first is
    computed to its end first, and others find its beginning in the prefix cache.
    """
    if sum(lengths) <= quota:
        return list(lengths)
    granted = [0] * len(lengths)
    in_order = sorted(range(len(lengths)), key=lambda index: orders[index])
    by_length = sorted(in_order, key=lambda index: (*orders[index][:2], lengths[index]))
    for indices, part_of_quota in ((in_order, quota - quota // 2), (by_length, quota // 2)):
        left = part_of_quota
        for index in indices:
            part = min(left, lengths[index] - granted[index])
            granted[index] += part
            left -= part
    return granted


def _find_rows_to_run(state: SchedulerState, rows: Rows) -> BoolArray:
    runs: BoolArray = rows.least_length < rows.max_length
    num_stages = state.config.num_pipeline_stages
    if num_stages > 1:
        # A request is in one stage at a time, and each stage gets its part of the requests.
        runs &= rows.num_plans_in_flight - np.isin(rows.slots, state.settling) <= 0
        runs &= np.cumsum(runs) <= -(-len(state.running) // num_stages)
    return runs


def _lacking_blocks(state: SchedulerState, rows: Rows, lengths: Int32Array) -> Int32Array:
    """Returns how many blocks each row lacks to hold `lengths` tokens, or its longest."""
    block_size = state.config.block_size
    wanted = (np.minimum(lengths, rows.max_length) + (block_size - 1)) // block_size
    lacking: Int32Array = np.maximum(wanted - state.blocks.num_blocks.take(rows.slots), 0)
    return lacking


def _fit_drafts(
    state: SchedulerState,
    slots: SlotArray,
    ends: Int32Array,
    drafts: Int32Array,
    num_new: Int32Array,
    num_free: int,
) -> tuple[Int32Array, Int32Array]:
    """Cuts drafts to the free blocks; returns them and the blocks that they need besides."""
    block_size = state.config.block_size
    held = (state.blocks.num_blocks[slots] + num_new) * block_size
    room = np.maximum(held - ends, 0)
    wanted = -(-np.maximum(drafts - room, 0) // block_size)
    granted = np.clip(num_free - (np.cumsum(wanted) - wanted), 0, wanted).astype(np.int32)
    return np.minimum(drafts, room + granted * block_size).astype(np.int32), granted


def find_candidates(state: SchedulerState) -> list[Admission]:
    """Returns the first waiting requests as far as slots and blocks go.

    A request gets the blocks of all its known tokens at once, so that no prefill is begun that
    cannot end. Each running row keeps one free block in reserve: without it, an admission would
    often be preempted by the next decode step.
    """
    config, candidates = state.config, list[Admission]()
    num_free, most = state.blocks.num_free, min(state.table.num_free_slots, MAX_CANDIDATES)
    for request in state.admissible:
        if len(candidates) == most:
            break
        cached, num_taken = match_prefix(state, request)
        num_tokens = len(request.token_ids)
        num_blocks = num_taken + config.num_blocks_for(num_tokens) - len(cached)
        num_free -= num_blocks
        if num_free < len(state.running) + len(candidates):
            break
        num_left = num_tokens - len(cached) * config.block_size
        candidates.append(Admission(request, cached, num_blocks, num_left))
    return candidates


def admit(
    state: SchedulerState,
    candidates: Sequence[Admission],
    shares: Sequence[int],
    budget: int,
    num_free: int,
) -> list[Admission]:
    """Admits the candidates that have a share of the pass, while blocks last.

    One without waits on, and what it needs stays free for it: who goes before it takes only tokens.
    """
    config, admitted = state.config, list[Admission]()
    num_for_drafts = max(budget - sum(shares), int((1 - config.prefill_share) * budget))
    for number, (each, share) in enumerate(zip(candidates, shares, strict=True)):
        num_free -= each.num_blocks
        num_spare = num_free - len(state.running) - number
        if num_spare < 0:
            break
        known, drafts = min(share, budget), 0
        if not known:
            continue
        budget -= known
        # After a prompt that is not computed to its end there is nothing to verify.
        if known == each.num_left_tokens:
            drafts = _count_drafts(state, each.request, min(num_for_drafts, budget), num_spare)
        budget -= drafts
        num_for_drafts -= drafts
        num_tokens = len(each.request.token_ids)
        num_blocks = config.num_blocks_for(num_tokens + drafts)
        num_free -= num_blocks - config.num_blocks_for(num_tokens)
        each.num_known_tokens, each.num_draft_tokens = known, drafts
        each.num_new_blocks = num_blocks - len(each.cached_blocks)
        admitted.append(each)
    return admitted


def match_prefix(state: SchedulerState, request: Request) -> tuple[Int32Array, int]:
    """Returns the cached blocks a request can begin with, and how many of them count as free."""
    # The last token is always computed: its logits choose the next one.
    num_tokens = len(request.token_ids) - 1
    if request.wants_prompt_logprobs:
        # What comes after a token is reported only when that is computed.
        num_tokens = min(num_tokens, request.num_reported_tokens)
    most = num_tokens // state.config.block_size
    cached = state.blocks.match(request.block_hashes[:most])
    return cached, state.blocks.num_evictable(cached)


def find_victims(state: SchedulerState, num_free: int) -> SlotArray:
    """Returns running slots that make room for the next waiting request, the least urgent first.

    Only requests of lower priority give way, no more of them than needed, and none if all of them
    together would not do.
    """
    head = next(iter(state.admissible), None)
    victims: list[int] = []
    if head is None:
        return NO_SLOTS
    cached, num_taken = match_prefix(state, head)
    num_wanted = state.config.num_blocks_for(len(head.token_ids)) - len(cached) + num_taken
    candidates = state.running.tolist()
    while True:
        leaving = np.concatenate([state.fenced_slots, np.array(victims, np.int64)])
        num_spare = num_free + state.blocks.num_freed_by(leaving) - num_wanted - len(candidates)
        if num_spare >= 0 and state.table.num_free_slots + len(leaving) > 0:
            return np.array(victims, np.int64)
        if not candidates or not gives_way(state.table.request(candidates[-1]), head):
            return NO_SLOTS
        victims.append(candidates.pop())


def gives_way(request: Request, other: Request) -> bool:
    """Returns whether a running request is preempted for another one that needs its slot."""
    return (other.is_promoted, -other.priority) > (request.is_promoted, -request.priority)


def _count_drafts(state: SchedulerState, request: Request, budget: int, num_spare: int) -> int:
    """Returns what is drafted beside the end of a prompt."""
    num_tokens = len(request.token_ids)
    window = request.window and request.window.follow(request.token_ids, request.num_prompt_tokens)
    width = state.widths.first(
        request.max_draft_tokens,
        0 if window is None else window.num_nodes,
        uses_lookup=request.uses_lookup,
        may_wait=state.table.wait_gain <= request.gain,
    )
    block_size = state.config.block_size
    room = (state.config.num_blocks_for(num_tokens) + num_spare) * block_size - num_tokens
    return max(0, min(width, request.max_length - num_tokens - 1, budget, room))
