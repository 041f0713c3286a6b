"""Which running rows run, which requests get a slot, and what each gets of tokens and blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, Int32Array, SlotArray
from optimist_scheduler.core.requests.plan import NO_SLOTS, Admission, ScheduleView
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.table import Rows
from optimist_scheduler.core.width.acceptance import Drafter

SELECTIVE_FACTOR = 8
"""How many times as many drafts as pay on the average a lookup may make where it is sure."""
MAX_CANDIDATES = 64
"""Waiting requests that a decision looks at."""


@dataclass(slots=True)
class Candidate:
    """A waiting request for which there are a slot and blocks."""

    request: Request
    cached_blocks: Int32Array
    """Blocks that hold its first tokens' KV already."""
    num_blocks: int
    """Free blocks that it takes, cached ones included."""
    num_left_tokens: int
    """Known tokens that are not cached."""


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
            self.is_short,
        )

    def select(self, chosen: BoolArray) -> "PlannedRows":
        """Returns the rows that a mask chooses."""
        slots, known = self.slots[chosen], self.num_known_tokens[chosen]
        drafts, num_new = self.num_draft_tokens[chosen], self.num_new_blocks[chosen]
        num_tokens = int(np.add.reduce(known + drafts))
        num_blocks = int(np.add.reduce(num_new))
        return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, self.is_short)


def plan_rows(
    view: ScheduleView,
    slots: SlotArray,
    budget: int,
    num_free: int,
    candidates: Sequence[Candidate] = (),
) -> PlannedRows | None:
    """Plans running rows; None if the free blocks do not hold their known tokens.

    Args:
        view: The state.
        slots: Running slots, the most urgent first.
        budget: Tokens that the rows and the candidates may have, at least one for each row.
        num_free: Blocks that the rows may have.
        candidates: Waiting requests that share the budget.
    """
    rows = view.table.gather(slots)
    known, drafts, num_tokens, shares = _share_budget(view, slots, rows, budget, candidates)
    end = rows.num_computed_tokens + known
    num_new = _lacking_blocks(view, slots, rows, end + drafts)
    num_blocks = int(np.add.reduce(num_new))
    if num_blocks <= num_free:
        return PlannedRows(slots, known, drafts, num_new, num_tokens, num_blocks, shares=shares)
    num_new = _lacking_blocks(view, slots, rows, end)
    num_free -= int(num_new.sum())
    if num_free < 0:
        return None
    drafts, num_draft_blocks = _fit_drafts(view, slots, end, drafts, num_new, num_free)
    num_new = num_new + num_draft_blocks
    num_tokens = int(known.sum()) + int(drafts.sum())
    return PlannedRows(slots, known, drafts, num_new, num_tokens, int(num_new.sum()), shares=shares)


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
    known, *_ = _share_budget(view, slots, rows, view.config.max_num_batched_tokens, ())
    return known, _lacking_blocks(view, slots, rows, rows.num_computed_tokens + known)


def _share_budget(
    view: ScheduleView,
    slots: SlotArray,
    rows: Rows,
    budget: int,
    candidates: Sequence[Candidate],
) -> tuple[Int32Array, Int32Array, int, list[int]]:
    """Returns known tokens and drafts per row, their sum, and known tokens per candidate.

    Each row gets one known token. Prompts, those of candidates too, share `prefill_share` of the
    rest and what drafts leave of it, see `share_prompts`; drafts get what prompts leave.
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
    if view.widths.goes_by_value and np.count_nonzero(drafts):
        # Not beside the end of a prompt, see `DraftWidths.first`.
        drafts = drafts * (left <= 1)
        drafts = view.widths.choose_worth(
            slots,
            total,
            drafts,
            lambda depths: windows.count_worth(slots, assumed, drafts, depths),
            assumed,
            windows.find_first_hazards(slots, assumed),
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
    shares = [candidate.num_left_tokens for candidate in candidates]
    if total + num_drafts + sum(shares) <= budget:
        return left, drafts, total + num_drafts, shares

    first = np.minimum(left, 1)
    extra = budget - int(first.sum())
    more = left - first
    quota = max(int(view.config.prefill_share * extra), extra - num_drafts)
    prompts = more.nonzero()[0]
    requests = [view.table.request(slot) for slot in slots[prompts].tolist()]
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


def share_prompts(
    quota: int, orders: Sequence[tuple[bool, int, int]], lengths: Sequence[int]
) -> list[int]:
    """Returns how many tokens of a pass each prompt gets; all together as many as there are.

    Half of them go to prompts in their order, so that each is computed in at most twice the time
    that those before it and itself take. The other half goes to the shortest among the most urgent
    ones, so that a short one does not wait for all of a long one. Of equal ones the first is
    computed to its end first, and others find its beginning in the prefix cache.

    Args:
        quota: The tokens.
        orders: See `Request.order` [num_prompts].
        lengths: Tokens that are still to be computed of each [num_prompts].
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


def find_candidates(view: ScheduleView) -> list[Candidate]:
    """Returns the first waiting requests as far as slots and blocks go.

    A request gets the blocks of all its known tokens at once, so that no prefill is begun that
    cannot end. Each running row keeps one free block in reserve: without it, an admission would
    often be preempted by the next decode step.
    """
    config, candidates = view.config, list[Candidate]()
    num_free, most = view.blocks.num_free, min(view.table.num_free_slots, MAX_CANDIDATES)
    for request in view.waiting:
        if len(candidates) == most:
            break
        cached, num_taken = match_prefix(view, request)
        num_tokens = len(request.token_ids)
        num_blocks = num_taken + config.num_blocks_for(num_tokens) - len(cached)
        num_free -= num_blocks
        if num_free < len(view.running) + len(candidates):
            break
        num_left = num_tokens - len(cached) * config.block_size
        candidates.append(Candidate(request, cached, num_blocks, num_left))
    return candidates


def admit(
    view: ScheduleView,
    candidates: Sequence[Candidate],
    shares: Sequence[int],
    budget: int,
    num_free: int,
) -> list[Admission]:
    """Admits the candidates that have a share of the pass, while blocks last.

    One without waits on, and what it needs stays free for it: who goes before it takes only tokens.

    Args:
        view: The state.
        candidates: See `find_candidates`.
        shares: Known tokens that each may compute [num_candidates].
        budget: Tokens for these and for their drafts, which prompts leave at least what
            `prefill_share` does of it.
        num_free: Blocks that running rows leave.
    """
    config, admitted = view.config, list[Admission]()
    num_for_drafts = max(budget - sum(shares), int((1 - config.prefill_share) * budget))
    for number, (candidate, share) in enumerate(zip(candidates, shares, strict=True)):
        request, cached = candidate.request, candidate.cached_blocks
        num_free -= candidate.num_blocks
        num_spare = num_free - len(view.running) - number
        if num_spare < 0:
            break
        known, drafts, num_tokens = min(share, budget), 0, len(request.token_ids)
        if not known:
            continue
        budget -= known
        # After a prompt that is not computed to its end there is nothing to verify.
        if known == candidate.num_left_tokens:
            drafts = _count_drafts(view, request, min(num_for_drafts, budget), num_spare)
        budget -= drafts
        num_for_drafts -= drafts
        num_new = config.num_blocks_for(num_tokens + drafts) - len(cached)
        num_free -= num_new - (config.num_blocks_for(num_tokens) - len(cached))
        admitted.append(Admission(request, request.token_ids, cached, known, drafts, num_new))
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
        if not candidates or not gives_way(view.table.request(candidates[-1]), head):
            return NO_SLOTS
        victims.append(candidates.pop())


def gives_way(request: Request, other: Request) -> bool:
    """Returns whether a running request is preempted for another one that needs its slot."""
    return (other.is_promoted, -other.priority) > (request.is_promoted, -request.priority)


def _count_drafts(view: ScheduleView, request: Request, budget: int, num_spare: int) -> int:
    """Returns what is drafted beside the end of a prompt."""
    num_tokens = len(request.token_ids)
    window = request.window and request.window.follow(request.token_ids, request.num_prompt_tokens)
    width = view.widths.first(
        request.max_draft_tokens,
        0 if window is None else window.num_nodes,
        uses_lookup=request.uses_lookup,
        may_wait=view.table.wait_gain <= request.gain,
    )
    block_size = view.config.block_size
    room = (view.config.num_blocks_for(num_tokens) + num_spare) * block_size - num_tokens
    return max(0, min(width, request.max_length - num_tokens - 1, budget, room))
