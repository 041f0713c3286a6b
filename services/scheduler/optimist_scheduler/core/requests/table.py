"""The requests of a worker: those that wait, in order, and columns of those that have a slot."""

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, Int32Array, SlotArray
from optimist_scheduler.core.requests.following import FIRST_PREDICTED_GAIN, PredictedGain
from optimist_scheduler.core.requests.request import NO_SLOT, Request
from optimist_scheduler.core.windows.slot_planes import NO_PATH
from optimist_scheduler.core.windows.slot_windows import WindowPlanes
from optimist_scheduler.core.windows.window import Window

_ORDER = attrgetter("order")


class WaitingQueue:
    """Waiting requests; the version moves with every change."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.version = 0
        self.suspects: list[Request] = []
        """Those that are to run alone, the next one first, which may run already; mostly none."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Sequence[Request]:
        """The requests, the next one first; not a copy."""
        return self._requests

    def add(self, request: Request) -> None:
        """Adds a request at its position."""
        insort(self._requests, request, key=_ORDER)
        self.version += 1

    def remove(self, request: Request) -> None:
        """Takes a request out; raises ValueError if it does not wait."""
        self._requests.remove(request)
        self.version += 1

    def note_admission(self, request: Request) -> None:
        """Marks those who came before `request` and wait still."""
        for other in self._requests:
            if other.arrival < request.arrival:
                other.is_overtaken = True

    def promote(self, now: float, patience: float) -> int:
        """Lets requests that were overtaken and waited for too long go before all others.

        Returns how many they are.
        """
        starved = [
            request
            for request in self._requests
            if request.is_overtaken
            and not request.is_promoted
            and now - request.arrival_time > patience
        ]
        for request in starved:
            request.is_promoted = True
        if starved:
            self.resort()
        return len(starved)

    def touch(self) -> None:
        """Notes that a request changed, though not its position."""
        self.version += 1

    def resort(self) -> None:
        """Restores the order after a change of what it depends on."""
        self._requests.sort(key=_ORDER)
        self.version += 1


class StopTokens:
    """Counts, per token, the requests that it may end, so that most steps need one look."""

    def __init__(self, vocab_size: int) -> None:
        self._counts = np.zeros(vocab_size, np.int32)
        self._is_stop = np.zeros(vocab_size, np.bool_)

    def add(self, token_ids: Collection[int]) -> None:
        """Counts a request with these stop tokens."""
        self._count(list(token_ids), 1)

    def remove(self, token_ids: Collection[int]) -> None:
        """Counts it no longer."""
        self._count(list(token_ids), -1)

    def find(self, token_ids: Int32Array) -> BoolArray:
        """Returns which tokens may end some request [num_tokens]."""
        return self._is_stop.take(token_ids)

    def _count(self, token_ids: list[int], change: int) -> None:
        if token_ids:
            self._counts[token_ids] += change
            self._is_stop[token_ids] = self._counts[token_ids] > 0


class SlotStatus:
    """What a slot is used for.

    Plain integers: numpy takes several times as long to compare a column with an enumeration.
    """

    FREE: Final = 0
    RUNNING: Final = 1
    LEAVING: Final = 2
    """Preempted: waits again when the last plan that names it has settled."""
    ENDED: Final = 3
    """Over: released when the last plan that names it has settled."""


@dataclass(slots=True)
class Counters:
    """Columns that plans and results move, and what bounds them, of some slots [num_rows]."""

    slots: SlotArray
    num_tokens: Int32Array
    """Prompt and verified output tokens."""
    num_computed_tokens: Int32Array
    """Tokens whose KV is present or in flight, as if every draft were accepted."""
    num_output_placeholders: Int32Array
    """Output tokens in flight, as if every draft were accepted."""
    num_in_flight_tokens: Int32Array
    """Tokens that plans in flight compute, drafts included."""
    num_plans_in_flight: Int32Array
    """Plans in flight that name the slot."""
    num_emits_in_flight: Int32Array
    """How many of them emit at least one token."""
    max_length: Int32Array
    """Length at which the request ends."""
    window_end: Int32Array
    """Length of the sequence at the end of its window's likeliest path; 0 without a window that
    agrees."""

    @property
    def assumed_length(self) -> Int32Array:
        """Tokens as if every draft in flight were accepted."""
        return self.num_tokens + self.num_output_placeholders

    @property
    def least_length(self) -> Int32Array:
        """Tokens if none of these is: each plan in flight that emits brings at least one."""
        return self.num_tokens + self.num_emits_in_flight


@dataclass(slots=True)
class Rows(Counters):
    """Columns that schedules are made from, of some slots [num_rows]."""

    draft_width: Int32Array
    """Most drafts of the next pass if they come from the window."""
    drafter_width: Int32Array
    """Most drafts of the next pass if the worker's drafter makes them."""
    form_width: Int32Array
    """Most drafts of the next pass from the form of the answer; 0 for rows without a grammar."""
    yields: Int32Array
    """1 where the row drafts with that though it has a window, which the worker is not to have."""


_GIVEN = ("owner", "handle", "num_prompt_tokens", "num_predicted_tokens")
"""What a request brings to its slot, besides its tokens and its longest length."""
_CARRIED = ("num_passes", "num_drafted_tokens", "gain", "num_observed_tokens")
"""What it brings and takes with it."""
_find_brought = attrgetter(*_GIVEN, *_CARRIED)


class RequestTable(Rows):
    """Columns of the requests that have a slot, indexed by slot [max_num_seqs]."""

    status: Int32Array
    """A SlotStatus."""
    generation: Int32Array
    """Moves when a request takes or leaves the slot."""
    version: Int32Array
    """Moves whenever something changes what the slot may run, other than its own results."""
    owner: Int32Array
    handle: Int32Array
    num_prompt_tokens: Int32Array
    num_passes: Int32Array
    """Forward passes that emitted tokens."""
    num_drafted_tokens: Int32Array
    """Drafts that were verified."""
    num_predicted_tokens: Int32Array
    num_registered_blocks: Int32Array
    """Blocks, from the first on, that the prefix cache knows."""
    gain: Int32Array
    """What following the request brings; see `following.py`."""
    num_observed_tokens: Int32Array
    """Prompt and output tokens that proposers were sent."""

    def __init__(self, max_num_seqs: int, max_length: int) -> None:
        # All columns but the slots themselves.
        self._scheduled_columns = np.zeros((len(fields(Rows)) - 1, max_num_seqs), np.int32)
        self._counters = self._scheduled_columns[: len(fields(Counters)) - 1]
        super().__init__(np.arange(max_num_seqs), *self._scheduled_columns)
        for name in ("status", "generation", "version", "num_registered_blocks"):
            setattr(self, name, np.zeros(max_num_seqs, np.int32))
        self._brought = np.zeros((len(_GIVEN) + len(_CARRIED), max_num_seqs), np.int32)
        for name, column in zip((*_GIVEN, *_CARRIED), self._brought, strict=True):
            setattr(self, name, column)
        # Memory that is never touched is never taken.
        self.token_ids = np.zeros((max_num_seqs, max_length), np.int32)
        """Prompt and verified output [max_num_seqs, max_length]."""
        self.windows = WindowPlanes(self.token_ids)
        self.requests: list[Request | None] = [None] * max_num_seqs
        self.request_ids = [""] * max_num_seqs
        """Of the requests, for those who need nothing else of them."""
        self.predicted_gain = PredictedGain()
        self.wait_gain = FIRST_PREDICTED_GAIN
        """From which gain on steps wait for windows, see `find_wait_gain`."""
        self.num_followed = 0
        """Slots whose requests a proposer follows."""
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_free_slots(self) -> int:
        """Slots without a request."""
        return len(self._free_slots)

    def gather(self, slots: SlotArray) -> Rows:
        """Returns the columns that schedules are made from, of some slots.

        A window that yields counts as none.
        """
        # Slots are never out of bounds, and numpy wraps sooner than it checks.
        rows = Rows(slots, *self._scheduled_columns.take(slots, axis=1, mode="wrap"))
        rows.window_end *= 1 - rows.yields
        return rows

    def gather_counters(self, slots: SlotArray) -> Counters:
        """Returns the columns that plans and results move, of some slots."""
        return Counters(slots, *self._counters.take(slots, axis=1, mode="wrap"))

    def request(self, slot: int) -> Request:
        """Returns the request in a slot; raises LookupError if it is free."""
        request = self.requests[slot]
        if request is None:
            raise LookupError(f"slot {slot} is free")
        return request

    def tokens(self, slot: int) -> Int32Array:
        """Returns prompt and verified output of a slot, a view [num_tokens]."""
        return self.token_ids[slot, : self.num_tokens[slot]]

    def is_worth_a_wait(self, slots: SlotArray) -> BoolArray:
        """Returns for which requests a step may wait for a window [num_rows]."""
        return self.gain.take(slots) >= self.wait_gain

    def admit(self, request: Request, num_cached_tokens: int) -> int:
        """Gives a request a slot and returns it.

        The first `num_cached_tokens` have their KV in cached blocks.
        """
        slot = self._free_slots.pop()
        request.slot = slot
        self.requests[slot] = request
        self.request_ids[slot] = request.request_id
        self.num_followed += request.is_followed
        num_tokens = len(request.token_ids)
        self._scheduled_columns[:, slot] = 0
        self.num_tokens[slot] = num_tokens
        self.num_computed_tokens[slot] = num_cached_tokens
        self.status[slot] = SlotStatus.RUNNING
        self.num_registered_blocks[slot] = 0
        self.max_length[slot] = request.max_length
        self._brought[:, slot] = _find_brought(request)
        self.token_ids[slot, :num_tokens] = request.token_ids
        self.generation[slot] += 1
        self.version[slot] += 1
        if request.window is not None and self._set_window(slot, request.window) == NO_PATH:
            request.window = None
        return slot

    def update(self, request: Request) -> None:
        """Brings up to date what a request with a slot carries from one slot to the next."""
        carried = self._brought[len(_GIVEN) :, request.slot].tolist()
        request.num_passes, request.num_drafted_tokens = carried[:2]
        request.gain, request.num_observed_tokens = carried[2:]

    def release(self, slot: int, *, is_over: bool = False) -> Request:
        """Takes the request out of its slot, with the tokens that it has by now if it goes on."""
        request = self.request(slot)
        if not is_over:
            self.update(request)
            request.token_ids = self.tokens(slot).copy()
        request.slot = NO_SLOT
        self.requests[slot] = None
        self.num_followed -= request.is_followed
        self.windows.planes.remove(slot)
        self.status[slot] = SlotStatus.FREE
        self.generation[slot] += 1
        self.version[slot] += 1
        self._free_slots.append(slot)
        return request

    def replace_window(self, slot: int, window: Window | None) -> bool:
        """Replaces what a slot's output is expected to go on with, None for nothing.

        The version stays if the next pass may draft as much as it may at most, before and after.
        Returns False, with nothing changed, if the window does not go on with the output.
        """
        before = int(self.window_end[slot])
        if window is None:
            self.windows.planes.remove(slot)
            self.window_end[slot] = end = 0
        elif (end := self._set_window(slot, window)) == NO_PATH:
            return False
        self.request(slot).window = window
        assumed = self.num_tokens[slot] + self.num_output_placeholders[slot]
        if min(before, end) - assumed < self.draft_width[slot]:
            self.version[slot] += 1
        return True

    def _set_window(self, slot: int, window: Window) -> int:
        """Notes what a slot's output is expected to go on with; see `SlotPlanes.set`."""
        start, length = int(self.num_prompt_tokens[slot]) + window.base, int(self.num_tokens[slot])
        if start > length:
            return NO_PATH
        end = self.windows.set(slot, window, start, length)
        if end != NO_PATH:
            self.window_end[slot] = end
        return end
