"""The state of requests: one object for each, and columns for those that run."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.account import PredictionAccount
from optimist_scheduler.core.window import Window

Int32Array = npt.NDArray[np.int32]

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Request:
    """One request, from add to end."""

    request_id: str
    token_ids: list[int]
    """Prompt and verified output."""
    num_prompt_tokens: int
    max_length: int
    """Length at which the request ends, prompt and output, in tokens."""
    min_length: int
    """Length below which a stop token does not end the request, in tokens."""
    stop_token_ids: frozenset[int]
    sampling: SamplingParams
    num_predicted_tokens: int
    account: PredictionAccount
    window: Window | None = None
    """The last window that was set, whether it still agrees with the output or not."""
    slot: int = NO_SLOT
    num_passes: int = 0
    """Forward passes that emitted tokens."""
    num_lost_plans: int = 0
    """Plans that named the request and were lost with the worker, since the last one settled."""
    ended: bool = False
    """Whether the request is over; one that ends in flight keeps its slot until that is settled."""

    @property
    def num_output_tokens(self) -> int:
        """Verified tokens behind the prompt."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def usable_window(self) -> Window | None:
        """The window if the output agrees with it and has reached it."""
        window, position = self.window, self.num_output_tokens
        if window is None or position < window.base:
            return None
        since = self.token_ids[self.num_prompt_tokens + window.base :]
        return window if window.agrees(window.base, since) else None


class RequestTable:
    """Columns of the requests that run, indexed by slot [max_num_seqs]."""

    def __init__(self, max_num_seqs: int) -> None:
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        """Prompt and verified output tokens."""
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int32)
        """Tokens whose KV is present or in flight, as if every draft were accepted."""
        self.num_output_placeholders = np.zeros(max_num_seqs, np.int32)
        """Output tokens in flight, as if every draft were accepted."""
        self.max_length = np.zeros(max_num_seqs, np.int32)
        """Length at which the request ends."""
        self.window_end = np.zeros(max_num_seqs, np.int32)
        """Length of the sequence at the end of its window; 0 without a window that agrees."""
        self.window_shift = np.zeros(max_num_seqs, np.int32)
        """Position in the prediction less output position, inside the window."""
        self.requests: list[Request | None] = [None] * max_num_seqs
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_free_slots(self) -> int:
        """Slots without a request."""
        return len(self._free_slots)

    def request(self, slot: int) -> Request:
        """Returns the request in a slot; raises LookupError if it is free."""
        request = self.requests[slot]
        if request is None:
            raise LookupError(f"slot {slot} is free")
        return request

    def admit(self, request: Request) -> int:
        """Gives a request a slot with nothing computed and returns it."""
        slot = self._free_slots.pop()
        request.slot = slot
        self.requests[slot] = request
        self.num_tokens[slot] = len(request.token_ids)
        self.num_computed_tokens[slot] = 0
        self.num_output_placeholders[slot] = 0
        self.max_length[slot] = request.max_length
        self.set_window(slot, request)
        return slot

    def release(self, slot: int) -> None:
        """Takes the request out of its slot."""
        self.request(slot).slot = NO_SLOT
        self.requests[slot] = None
        self._free_slots.append(slot)

    def set_window(self, slot: int, request: Request) -> None:
        """Notes how far the request's window reaches."""
        window = request.usable_window
        if window is None:
            self.window_end[slot] = 0
            return
        self.window_end[slot] = request.num_prompt_tokens + window.base + len(window.token_ids)
        self.window_shift[slot] = window.prediction_offset - window.base

    def check_integrity(self) -> None:
        """Raises AssertionError if columns, requests and free slots contradict each other."""
        taken = {slot for slot, request in enumerate(self.requests) if request is not None}
        if taken & set(self._free_slots) or len(taken) + self.num_free_slots != len(self.requests):
            raise AssertionError(f"slots {sorted(taken)} taken, {self._free_slots} free")
        for slot in taken:
            request = self.request(slot)
            if request.slot != slot or self.num_tokens[slot] != len(request.token_ids):
                raise AssertionError(f"slot {slot} does not fit {request.request_id}")
            verified = self.num_computed_tokens[slot] - self.num_output_placeholders[slot]
            if self.num_output_placeholders[slot] < 0 or verified > self.num_tokens[slot] - 1:
                raise AssertionError(
                    f"slot {slot}: {self.num_computed_tokens[slot]} computed, "
                    f"{self.num_output_placeholders[slot]} placeholders, "
                    f"{self.num_tokens[slot]} tokens"
                )
