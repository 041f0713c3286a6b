"""The state of requests: one object for each, and columns for those that have a slot."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.following import (
    NOT_FOLLOWED,
    is_worth_a_wait,
)
from optimist_scheduler.core.values.arrays import BoolArray, Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.values.output import NUM_SOURCES
from optimist_scheduler.core.windows.window import NO_WINDOW, Window
from optimist_scheduler.core.windows.window_planes import WindowPlanes

NO_SLOT = -1


class SlotStatus(IntEnum):
    """What a slot is used for."""

    FREE = 0
    RUNNING = 1
    LEAVING = 2
    """Preempted: waits again when the last plan that names it has settled."""
    ENDED = 3
    """Over: released when the last plan that names it has settled."""


@dataclass(slots=True, eq=False)
class Request:
    """One request, from add to end."""

    request_id: str
    owner: int
    handle: int
    token_ids: Int32Array
    """Prompt and verified output, of a request without a slot [num_tokens]."""
    num_prompt_tokens: int
    wanted_length: int
    """Length at which the request is to end, prompt and output, in tokens."""
    max_length: int
    """The same within what the worker can hold."""
    min_length: int
    """Length below which a stop token does not end the request, in tokens."""
    stop_token_ids: frozenset[int]
    sampling: SamplingParams
    sampling_message: Any
    """The same as it came, for the worker."""
    num_predicted_tokens: int
    """Of all predictions."""
    priority: int
    """The smaller, the sooner; 0 unless the policy is priority."""
    cache_salt: str
    max_draft_tokens: int
    """Most drafts per pass."""
    wants_prediction_positions: bool
    """Whether its owner gets the positions of accepted drafts in the predictions."""
    arrival: int = 0
    """Counts requests as they were added."""
    arrival_time: float = 0.0
    """When the request was added, in seconds."""
    is_overtaken: bool = False
    """Whether a request that was added later has been admitted before it."""
    is_promoted: bool = False
    """Whether the request goes before all others because it starved."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Prefix hashes of the full blocks of its tokens, as far as they were needed."""
    window: Window | None = None
    """What is left of the last window that was set, from some place of the output on."""
    window_base: int = -1
    """Output tokens that were known to who made that window."""
    slot: int = NO_SLOT
    num_passes: int = 0
    """Forward passes that emitted tokens, before the present slot."""
    num_accepted_by_source: tuple[int, ...] = (0,) * NUM_SOURCES
    """Drafts that were kept, indexed by DraftSource, before the present slot."""
    prediction_marks: bytes = b""
    """What was drafted and kept of the prediction, before the present slot."""
    num_losses: int = 0
    """Times the worker was lost with a plan that named the request, since it last got a token."""
    num_passes_when_lost: int = 0
    is_displaced: bool = False
    """Whether it ran when its worker was lost, and does not go on yet."""
    num_drafted_tokens: int = 0
    """Drafts that were verified, before the present slot."""
    num_reported_tokens: int = 0
    """Tokens of the prompt, after the first, whose log-probabilities were reported."""
    num_given_tokens: int = 0
    """Output that the owner had when it added the request; not part of the account."""
    num_cached_tokens: int | None = None
    """Tokens of the prompt that the prefix cache held when the request first got a slot; None
    before that."""
    gain: int = NOT_FOLLOWED
    """What following it brings, before the present slot; see `following.py`."""
    num_observed_tokens: int = 0
    """Prompt and output tokens that proposers were sent, before the present slot."""

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt are still to be reported."""
        return (
            self.sampling.num_prompt_logprobs is not None
            and self.num_reported_tokens < self.num_prompt_tokens - 1
        )

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sorts requests: the smallest goes first."""
        return not self.is_promoted, self.priority, self.arrival

    @property
    def is_followed(self) -> bool:
        """Whether a proposer follows it."""
        return self.gain != NOT_FOLLOWED

    @property
    def is_worth_a_wait(self) -> bool:
        """Whether a step may wait for a window of it; it has no slot."""
        return bool(is_worth_a_wait(self.gain, self.num_predicted_tokens))


class Rows(NamedTuple):
    """Columns of some slots, read at once [num_rows]."""

    num_tokens: Int32Array
    num_computed_tokens: Int32Array
    num_output_placeholders: Int32Array
    num_in_flight_tokens: Int32Array
    num_plans_in_flight: Int32Array
    num_emits_in_flight: Int32Array
    num_lease_tokens: Int32Array
    max_length: Int32Array
    window_end: Int32Array
    draft_width: Int32Array
    drafter_width: Int32Array
    version: Int32Array


_OTHER_COLUMNS = (
    "status",
    "generation",
    "owner",
    "handle",
    "num_prompt_tokens",
    "num_passes",
    "num_drafted_tokens",
    "num_predicted_tokens",
    "num_registered_blocks",
    "gain",
    "num_observed_tokens",
)


class RequestTable:
    """Columns of the requests that have a slot, indexed by slot [max_num_seqs]."""

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
    num_lease_tokens: Int32Array
    """Tokens that repeats of plans could still add."""
    max_length: Int32Array
    """Length at which the request ends."""
    window_end: Int32Array
    """Length of the sequence at the end of its window's likeliest path; 0 without a window that
    agrees."""
    draft_width: Int32Array
    """Most drafts of the next pass if they come from the window."""
    drafter_width: Int32Array
    """Most drafts of the next pass if the worker's drafter makes them."""
    version: Int32Array
    """Moves whenever something changes what the slot may run, other than its own results."""
    status: Int32Array
    """A SlotStatus."""
    generation: Int32Array
    """Moves when a request takes or leaves the slot."""
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
        names = (*Rows._fields, *_OTHER_COLUMNS)
        columns = np.zeros((len(names), max_num_seqs), np.int32)
        for name, column in zip(names, columns, strict=True):
            setattr(self, name, column)
        self._scheduled_columns = columns[: len(Rows._fields)]
        # Memory that is never touched is never taken.
        self.token_ids = np.zeros((max_num_seqs, max_length), np.int32)
        """Prompt and verified output [max_num_seqs, max_length]."""
        self.windows = WindowPlanes(max_num_seqs, max_length)
        self.requests: list[Request | None] = [None] * max_num_seqs
        self.request_ids = [""] * max_num_seqs
        """Of the requests, for those who need nothing else of them."""
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_free_slots(self) -> int:
        """Slots without a request."""
        return len(self._free_slots)

    def gather(self, slots: SlotArray) -> Rows:
        """Returns the columns that schedules are made from, of some slots."""
        return Rows(*self._scheduled_columns.take(slots, axis=1))

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
        """Tells for which requests a step may wait for a window [num_rows]."""
        return is_worth_a_wait(self.gain.take(slots), self.num_predicted_tokens.take(slots))

    def cells(self, slots: SlotArray, places: Int32Array) -> Int64Array:
        """Returns where places of sequences lie in `token_ids`, flattened."""
        return slots * np.int64(self.token_ids.shape[1]) + places

    def admit(self, request: Request, num_cached_tokens: int) -> int:
        """Gives a request a slot and returns it.

        Args:
            request: A request without a slot.
            num_cached_tokens: Its first tokens whose KV is in cached blocks.
        """
        slot = self._free_slots.pop()
        request.slot = slot
        self.requests[slot] = request
        self.request_ids[slot] = request.request_id
        num_tokens = len(request.token_ids)
        # All but the version, which is the last.
        self._scheduled_columns[:-1, slot] = 0
        self.num_tokens[slot] = num_tokens
        self.num_computed_tokens[slot] = num_cached_tokens
        self.max_length[slot] = request.max_length
        self.status[slot] = SlotStatus.RUNNING
        self.owner[slot], self.handle[slot] = request.owner, request.handle
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
        self.num_passes[slot] = request.num_passes
        self.num_drafted_tokens[slot] = request.num_drafted_tokens
        self.num_predicted_tokens[slot] = request.num_predicted_tokens
        self.num_registered_blocks[slot] = 0
        self.gain[slot] = request.gain
        self.num_observed_tokens[slot] = request.num_observed_tokens
        self.token_ids[slot, :num_tokens] = request.token_ids
        self.generation[slot] += 1
        self.version[slot] += 1
        self._set_window(slot)
        return slot

    def release(self, slot: int) -> Request:
        """Takes the request out of its slot, with the tokens that it has by now."""
        request = self.request(slot)
        request.slot = NO_SLOT
        request.token_ids = self.tokens(slot).copy()
        request.num_passes = int(self.num_passes[slot])
        request.num_drafted_tokens = int(self.num_drafted_tokens[slot])
        request.gain = int(self.gain[slot])
        request.num_observed_tokens = int(self.num_observed_tokens[slot])
        self.requests[slot] = None
        self.windows.set(slot, None, int(self.num_tokens[slot]))
        self.status[slot] = SlotStatus.FREE
        self.generation[slot] += 1
        self.version[slot] += 1
        self._free_slots.append(slot)
        return request

    def replace_window(self, slot: int) -> None:
        """Takes the new window of a slot's request, which begins where the output ends.

        The version stays if the next pass may draft as much as it may at most, before and after.
        """
        before = int(self.window_end[slot])
        self._set_window(slot)
        assumed = self.num_tokens[slot] + self.num_output_placeholders[slot]
        if min(before, self.window_end[slot]) - assumed < self.draft_width[slot]:
            self.version[slot] += 1

    def _set_window(self, slot: int) -> None:
        """Notes what a slot's output is expected to go on with."""
        request = self.request(slot)
        if request.window is not None:
            num_prompt_tokens = int(self.num_prompt_tokens[slot])
            request.window = request.window.follow(self.tokens(slot), num_prompt_tokens)
        length = int(self.num_tokens[slot])
        self.window_end[slot] = self.windows.set(slot, request.window, length)

    def move_tree(self, slot: int, token_ids: Int32Array, *, is_likeliest: bool) -> None:
        """Moves a slot's tree on by tokens that the slot got.

        Args:
            slot: The slot.
            token_ids: The tokens, which the slot has already [num_tokens].
            is_likeliest: Whether they keep to the likeliest path.
        """
        request = self.request(slot)
        left = self.windows.trees[slot].window.pass_tokens(token_ids)
        # The worker may not have the tree yet: it is to forget what it has instead.
        request.window = left or NO_WINDOW
        if left is not None and is_likeliest:
            self.windows.move_tree(slot, left)
        else:
            length = int(self.num_tokens[slot])
            self.window_end[slot] = self.windows.set(slot, left, length)

    def check_integrity(self) -> None:
        """Raises AssertionError if columns, requests and free slots contradict each other."""
        taken = {slot for slot, request in enumerate(self.requests) if request is not None}
        if taken & set(self._free_slots) or len(taken) + self.num_free_slots != len(self.requests):
            raise AssertionError(f"slots {sorted(taken)} taken, {self._free_slots} free")
        for slot in taken:
            self._check_slot(slot)

    def _check_slot(self, slot: int) -> None:
        rows = self.gather(np.array([slot], np.int64))
        if self.request(slot).slot != slot or self.status[slot] == SlotStatus.FREE:
            raise AssertionError(f"slot {slot} does not fit {self.request(slot).request_id}")
        placeholders = int(rows.num_output_placeholders[0])
        num_verified = int(rows.num_computed_tokens[0]) - placeholders
        in_flight = int(rows.num_plans_in_flight[0]), int(self.num_in_flight_tokens[slot])
        if min(placeholders, *in_flight, int(rows.num_emits_in_flight[0])) < 0 or (
            self.status[slot] != SlotStatus.ENDED and num_verified > rows.num_tokens[0] - 1
        ):
            raise AssertionError(f"slot {slot}: {rows}, {in_flight[1]} tokens in flight")
        if rows.num_plans_in_flight[0] == 0 and (placeholders or in_flight[1]):
            raise AssertionError(f"slot {slot}: {rows}, with nothing in flight")
