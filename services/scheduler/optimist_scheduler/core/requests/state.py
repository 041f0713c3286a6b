"""Everything the scheduler knows: who waits, who runs, who owns what, what is in flight."""

from bisect import bisect
from collections import deque
from collections.abc import Sequence

import numpy as np

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.memory import BlockPool, hash_blocks
from optimist_scheduler.core.base.values import (
    BoolArray,
    FloatArray,
    Int32Array,
    SchedulerStats,
    SlotArray,
)
from optimist_scheduler.core.requests.account import DraftAccounts
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.following import (
    FIRST_GAIN,
    LEAST_GAIN,
    find_wait_gain,
    rests,
    wakes,
)
from optimist_scheduler.core.requests.pace import Pace
from optimist_scheduler.core.requests.plan import NO_SLOTS, Plan
from optimist_scheduler.core.requests.request import MAX_PREDICTED_TOKENS, NO_SLOT, Request
from optimist_scheduler.core.requests.table import (
    RequestTable,
    SlotStatus,
    StopTokens,
    WaitingQueue,
)
from optimist_scheduler.core.width.acceptance import expected_accepted
from optimist_scheduler.core.width.costs import PassCosts, Timings
from optimist_scheduler.core.width.widths import DraftWidths
from optimist_scheduler.core.windows.slot_windows import WorkerWindows
from optimist_scheduler.core.windows.window import MAX_TREE_DRAFTS, NO_WINDOW, Window

WIDTH_INTERVAL = 8
"""Results between two choices of draft widths."""


class SchedulerState:
    """The requests of one worker."""

    def __init__(
        self,
        config: EngineConfig,
        stats: SchedulerStats,
        timings: Timings,
        num_plans: int,
    ) -> None:
        self.config, self.stats = config, stats
        max_num_seqs = config.max_num_seqs
        self.table = RequestTable(max_num_seqs, config.max_length)
        self.blocks = BlockPool(
            config.num_blocks, max_num_seqs, config.num_blocks_for(config.max_length)
        )
        self.worker_windows = WorkerWindows(np.zeros(max_num_seqs, np.int32))
        self.accounts = DraftAccounts(max_num_seqs, MAX_PREDICTED_TOKENS)
        self.stops = StopTokens(config.vocab_size)
        self.widths = DraftWidths(config.draft_width, max_num_seqs, config.drafter)
        self.costs = PassCosts(timings)
        self._begin_widths()
        self.pace = Pace()
        self.waiting = WaitingQueue()
        self.takes_requests = True
        """Whether waiting requests may be admitted."""
        self.decides_ahead = False
        """Whether the next result comes before what is decided is carried out."""
        self.everyone: BoolArray = np.ones(max_num_seqs, np.bool_)
        """True for as many rows as there may be; never changed [max_num_seqs]."""
        self.released_slots: list[int] = []
        """Slots that the next plan tells the worker to release."""
        self.unsent_windows: dict[int, None] = {}
        """Running slots whose window the worker does not have, in order."""
        self.in_flight: deque[Plan] = deque()
        """Plans without a result, the oldest first."""
        self.num_plans = num_plans
        """Plans that were made; the last one's sequence."""
        self.fenced: dict[int, None] = {}
        """Slots that are given back once the plans in flight have settled, in order."""
        # Preempted requests wait before those that wait, though they have a slot still.
        self._num_leaving = 0
        self.running: SlotArray = NO_SLOTS
        """Slots of the requests that run, the most urgent first [num_running]; never changed, but
        replaced."""
        self._running_order: list[tuple[bool, int, int]] = []
        self.logprob_slots: set[int] = set()
        """Slots whose requests want log-probabilities."""
        self.position_slots: set[int] = set()
        """Slots whose requests want to know where accepted drafts were read from."""
        # Slots with prompt blocks that the prefix cache does not know yet.
        self._unregistered: set[int] = set()

    def _begin_widths(self) -> None:
        """Lets the first requests begin with what the drafter is worth by what is known of it."""
        slots, nobody = np.zeros(1, np.int64), np.zeros(1, np.bool_)
        self.widths.admit(0, self.config.num_speculative_tokens)
        nothing = np.empty(0, np.int32)
        self.widths.choose(slots, nobody, 1, self.costs, nothing, choice=1)
        self._set_wait_gain(self.costs.of_rows(nothing).cost_of(1))

    def costs_for(self, slots: SlotArray) -> CostCurve:
        """Returns what passes of some slots take by their tokens."""
        return self.costs.of_rows(self.table.num_tokens.take(slots))

    @property
    def settling(self) -> SlotArray:
        """Slots of the plan whose result comes before what is decided is carried out."""
        return self.in_flight[0].slots if self.decides_ahead and self.in_flight else NO_SLOTS

    @property
    def admissible(self) -> Sequence[Request]:
        """Requests that may get a slot, the next one first."""
        if not self.takes_requests or self._num_leaving:
            return ()
        if self.waiting.suspects:
            return [each for each in self.waiting.suspects[:1] if each.slot == NO_SLOT]
        return self.waiting.requests

    @property
    def fenced_slots(self) -> SlotArray:
        """Slots that are given back once the plans in flight have settled."""
        return np.array([*self.fenced], np.int64)

    def is_turn(self, interval: int) -> bool:
        """Returns whether a result is one that so many others follow before the next such."""
        # Each stage of a pipeline has rows of its own.
        return self.stats.num_results % interval < self.config.num_pipeline_stages

    def wait(self, request: Request) -> None:
        """Lets a request wait for its turn."""
        if self.config.enable_prefix_caching:
            self._hash(request, request.token_ids)
        self.waiting.add(request)

    def set_apart(self) -> None:
        """Lets the first suspect run alone until it is suspected no more; all others wait.

        It is admitted when nothing else is in flight any more. Those that run wait again, as it may
        need all the memory.
        """
        if not self.waiting.suspects or not self.takes_requests:
            return
        while self.waiting.suspects and not self._is_suspected(self.waiting.suspects[0]):
            del self.waiting.suspects[0]
            self.waiting.touch()
        if self.waiting.suspects:
            for slot in self.running[self.running != self.waiting.suspects[0].slot].tolist():
                self.preempt(slot)

    def _is_suspected(self, request: Request) -> bool:
        if request.slot != NO_SLOT:
            request.suspicion.note_length(int(self.table.num_tokens[request.slot]))
        return request.suspicion.must_run_alone

    def admit(self, request: Request, cached_blocks: Int32Array) -> int:
        """Moves a request from waiting to running; returns its slot."""
        self.waiting.remove(request)
        if not self.waiting.suspects:
            self.waiting.note_admission(request)
        num_cached_tokens = len(cached_blocks) * self.config.block_size
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(num_cached_tokens, request.num_prompt_tokens)
        slot = self.table.admit(request, num_cached_tokens)
        self.blocks.take(slot, cached_blocks)
        self.table.num_registered_blocks[slot] = len(cached_blocks)
        self.accounts.open(slot, request)
        self.stops.add(request.stop_token_ids)
        if request.sampling.wants_logprobs:
            self.logprob_slots.add(slot)
        if request.wants_prediction_positions:
            self.position_slots.add(slot)
        self.table.draft_width[slot] = most = request.max_draft_tokens
        width = self.widths.admit(slot, most, uses_lookup=request.uses_lookup)
        self.table.drafter_width[slot] = width
        has_form = request.sampling.grammar != ""
        self.table.form_width[slot] = min(most, self.config.max_form_drafts) * has_form
        index = bisect(self._running_order, request.order)
        self._running_order.insert(index, request.order)
        self.running = np.concatenate([self.running[:index], [slot], self.running[index:]])
        if request.window is not None and request.window.num_nodes:
            self.unsent_windows[slot] = None
        if self.config.enable_prefix_caching:
            self.stats.num_prefix_queries += len(request.token_ids)
            self.stats.num_prefix_hits += num_cached_tokens
            self._unregistered.add(slot)
        return slot

    def preempt(self, slot: int) -> None:
        """Takes a running request's blocks; it waits again, to be computed anew.

        With plans in flight, that is when they have settled; what they bring is still delivered.
        """
        self.stats.num_preemptions += 1
        self._num_leaving += 1
        self._stop(self.table.request(slot), SlotStatus.LEAVING)

    def end(self, request: Request) -> None:
        """Ends a request; its slot is released when no plan in flight names it."""
        if request in self.waiting.suspects:
            self.waiting.suspects.remove(request)
            self.waiting.touch()
        if request.slot == NO_SLOT:
            self.waiting.remove(request)
        elif self.table.status[request.slot] == SlotStatus.RUNNING:
            self._stop(request, SlotStatus.ENDED)
        else:
            self.table.status[request.slot] = SlotStatus.ENDED
            self._num_leaving -= 1

    def set_priority(self, request: Request, priority: int) -> None:
        """Changes how urgent a request is, and its position with that."""
        request.priority = priority
        if request.slot == NO_SLOT:
            self.waiting.resort()
        orders = [(self.table.request(slot).order, slot) for slot in self.running.tolist()]
        self._running_order = [order for order, _ in sorted(orders)]
        self.running = np.array([slot for _, slot in sorted(orders)], np.int64)

    def set_window(self, request: Request, window: Window) -> bool:
        """Replaces a request's window; False if it is no such, or the request rests on."""
        slot, has_slot = request.slot, request.slot != NO_SLOT
        is_resting = rests(int(self.table.gain[slot]) if has_slot else request.gain)
        if is_resting or not has_slot:
            tokens = self.table.tokens(slot) if has_slot else request.token_ids
            left = window.follow(tokens, request.num_prompt_tokens)
            if left is None or (is_resting and not self._wakes(request, left)):
                return False
            if not has_slot:
                request.window, request.window_base = left, window.base
                # Not only when the request is admitted: then, a plan waits for them.
                left.find_hazards()
                self.waiting.touch()
                return True
        if not self.table.replace_window(slot, window):
            return False
        request.window_base = window.base
        self.unsent_windows[slot] = None
        return True

    def _wakes(self, request: Request, window: Window) -> bool:
        """Wakes a request that rests if a window promises enough; returns whether it is awake."""
        slot = request.slot
        has_slot = slot != NO_SLOT
        # Windows that have promised too much, as they mostly had before it rested, are doubted.
        if not wakes(window, float(self.widths.windows.scales[slot]) if has_slot else 1.0):
            return False
        self.stats.num_woken += 1
        if has_slot:
            self.table.gain[slot] = FIRST_GAIN
        else:
            request.gain = FIRST_GAIN
        return True

    def rest(self, slot: int) -> None:
        """Lets a slot's request draft from no window until one wakes it."""
        self.stats.num_rested += 1
        self.table.replace_window(slot, None)
        # The worker is to forget what it has.
        self.table.request(slot).window = NO_WINDOW
        self.unsent_windows[slot] = None

    def choose_widths(self, slots: SlotArray, base_tokens: int) -> None:
        """Chooses anew how much some rows may draft."""
        table = self.table
        lengths = table.num_tokens.take(slots)
        self._set_wait_gain(self.costs.of_rows(lengths).cost_of(len(slots)))
        drafting = (table.window_end.take(slots) > lengths) & (table.yields.take(slots) == 0)
        table.drafter_width[slots] = self.widths.choose(
            slots,
            drafting,
            base_tokens,
            self.costs,
            lengths,
            self.stats.num_results // WIDTH_INTERVAL,
        )

    def _set_wait_gain(self, pass_ns: float) -> None:
        is_paying = self.config.proposer_wait == "paying"
        self.table.wait_gain = find_wait_gain(pass_ns) if is_paying else LEAST_GAIN

    def weigh_drafter(self) -> None:
        """Decides what a drafter with a model drafts for whom, and which windows yield to it."""
        if self.config.drafter is None or self.config.drafter.is_lookup or not len(self.running):
            return
        table, slots = self.table, self.running
        lengths, ends = table.num_tokens.take(slots), table.window_end.take(slots)
        has_window, before = ends > lengths, table.drafter_width.take(slots)
        most = MAX_TREE_DRAFTS if np.count_nonzero(has_window) else 0
        widths, yields = self.widths.choose_drafter(
            slots,
            has_window,
            table.windows.find_hazards(slots, lengths, ends, most),
            self.costs.drafter,
            len(slots) + min(len(self.waiting.requests), table.num_free_slots),
        )
        is_other = yields != table.yields.take(slots)
        table.drafter_width[slots], table.yields[slots] = widths, yields
        table.version[slots] += is_other | (~has_window & (widths != before))
        # One that is wrong by now stays away.
        self.unsent_windows.update(dict.fromkeys(slots[is_other & has_window].tolist()))

    def find_drafter_gains(self, slots: SlotArray) -> FloatArray:
        """Returns what a drafter with a model brings rows in a pass, in tokens [num_rows]."""
        if (drafter := self.widths.drafter) is None or drafter.shape.is_lookup:
            return np.zeros(len(slots))
        levels = drafter.shape.count_levels(self.table.drafter_width.take(slots))
        return expected_accepted(drafter.acceptance.rate(slots), levels)

    def promote_starved(self, now: float) -> None:
        """Lets requests that were overtaken for too long go first."""
        self.stats.num_starved += self.waiting.promote(now, self.config.starvation_seconds)

    def take_all(self) -> list[Request]:
        """Returns all requests that are not over, without slots, the most urgent first.

        This state is of no use then.
        """
        at_work, table = self._find_rows_at_work(), self.table
        requests = list(self.waiting.requests)
        for slot in np.flatnonzero(table.status).tolist():
            if table.status[slot] == SlotStatus.ENDED:
                continue
            self.accounts.close(slot, table.request(slot))
            length, generation = int(table.num_tokens[slot]), int(table.generation[slot])
            assumed = length + table.num_output_placeholders[slot]
            request = table.release(slot)
            if (slot, generation) in at_work:
                request.suspicion.note_loss(length, int(assumed), is_alone=len(at_work) == 1)
            request.is_displaced = True
            requests.append(request)
        for request in requests:
            # Of another worker the blocks may have another size.
            request.block_hashes = []
        return sorted(requests, key=lambda request: request.order)

    def _find_rows_at_work(self) -> set[tuple[int, int]]:
        """Returns slots and generations of what the worker may be at work on."""
        return {
            row
            for step in self.in_flight
            for row in zip(step.slots.tolist(), step.generations.tolist(), strict=True)
        }

    def release_settled(self) -> None:
        """Releases the slots that are fenced and in no plan in flight any more."""
        for slot in [*self.fenced]:
            if self.table.num_plans_in_flight[slot] == 0:
                self._release(slot)

    def register_prompts(self) -> None:
        """Lets the prefix cache know the prompt blocks that were computed by now."""
        table, block_size = self.table, self.config.block_size
        for slot in sorted(self._unregistered):
            num_settled = int(table.num_computed_tokens[slot] - table.num_in_flight_tokens[slot])
            num_prompt_tokens = int(table.num_prompt_tokens[slot])
            self._register(slot, min(num_settled, num_prompt_tokens) // block_size)
            if num_settled >= num_prompt_tokens:
                self._unregistered.remove(slot)

    def _stop(self, request: Request, status: int) -> None:
        slot = request.slot
        index = int((self.running == slot).argmax())
        del self._running_order[index]
        self.running = np.concatenate([self.running[:index], self.running[index + 1 :]])
        self.fenced[slot] = None
        self.table.status[slot] = status
        self.table.version[slot] += 1
        if self.table.num_plans_in_flight[slot] == 0:
            self._release(slot)

    def _release(self, slot: int) -> None:
        """Takes slot and blocks of a request back; the next plan tells the worker."""
        is_over = self.table.status[slot] == SlotStatus.ENDED
        del self.fenced[slot]
        self._unregistered.discard(slot)
        if self.config.enable_prefix_caching:
            # The KV of the last token is not computed.
            num_computed = min(
                int(self.table.num_computed_tokens[slot]), int(self.table.num_tokens[slot]) - 1
            )
            self._register(slot, num_computed // self.config.block_size, is_over=is_over)
        self.blocks.release(slot)
        request = self.table.release(slot, is_over=is_over)
        self.stops.remove(request.stop_token_ids)
        self.unsent_windows.pop(slot, None)
        self.logprob_slots.discard(slot)
        self.position_slots.discard(slot)
        self.released_slots.append(slot)
        if not is_over:
            self._num_leaving -= 1
            self.accounts.close(slot, request)
            self.wait(request)

    def _register(self, slot: int, num_blocks: int, *, is_over: bool = False) -> None:
        """Lets the prefix cache know a slot's first blocks."""
        first = int(self.table.num_registered_blocks[slot])
        if num_blocks <= first:
            return
        request, block_size = self.table.request(slot), self.config.block_size
        known = request.block_hashes
        token_ids = self.table.tokens(slot)[: num_blocks * block_size]
        if is_over and 0 < first <= len(known) < num_blocks:
            salt, token_ids, before = request.cache_salt, token_ids.copy(), known[first - 1]
            self.blocks.register_unhashed(
                slot,
                first,
                num_blocks,
                before,
                lambda: hash_blocks(token_ids, block_size, salt, known),
            )
        else:
            self._hash(request, token_ids)
            self.blocks.register(slot, first, request.block_hashes[:num_blocks])
        self.table.num_registered_blocks[slot] = num_blocks

    def _hash(self, request: Request, token_ids: Int32Array) -> None:
        if len(request.block_hashes) < len(token_ids) // self.config.block_size:
            request.block_hashes = hash_blocks(
                token_ids, self.config.block_size, request.cache_salt, request.block_hashes
            )
