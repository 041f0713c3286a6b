"""Which waiting requests get a slot, and who makes room for a more urgent one."""

from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.requests.view import NO_SLOTS, ScheduleView
from optimist_scheduler.core.values.arrays import Int32Array, SlotArray


@dataclass(slots=True)
class AdmittedRow:
    """A request that takes a slot, and its first row."""

    request: Request
    cached_blocks: Int32Array
    """Blocks of the prefix cache that hold its first tokens."""
    num_known_tokens: int
    num_draft_tokens: int
    num_new_blocks: int


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


def admit(view: ScheduleView, num_running: int, budget: int, num_free: int) -> list[AdmittedRow]:
    """Takes requests from the front of the waiting ones while slots, blocks and budget last.

    A request gets the blocks of all its known tokens at once, so that no prefill is begun that
    cannot end. Each running row keeps one free block in reserve: without it, an admission would
    often be preempted by the next decode step.
    """
    config, admitted = view.config, list[AdmittedRow]()
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
        drafts = _count_drafts(view, request, budget - known, num_spare)
        num_new = config.num_blocks_for(num_tokens + drafts) - len(cached)
        admitted.append(AdmittedRow(request, cached, known, drafts, num_new))
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


def _count_drafts(view: ScheduleView, request: Request, budget: int, num_spare: int) -> int:
    num_tokens = len(request.token_ids)
    window = request.window and request.window.follow(request.token_ids, request.num_prompt_tokens)
    if window is not None and window.num_nodes:
        width = view.widths.first(request.max_draft_tokens, window)
    else:
        width = view.widths.first_of_drafter(
            request.max_draft_tokens, is_followed=request.is_followed
        )
    block_size = view.config.block_size
    room = (view.config.num_blocks_for(num_tokens) + num_spare) * block_size - num_tokens
    return max(0, min(width, request.max_length - num_tokens - 1, budget, room))
