"""Everything the scheduler knows: who waits, who runs, who owns what, what is in flight."""

from collections import deque

import numpy as np

from optimist_scheduler.core.blocks import BlockPool
from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.plan import StepInFlight
from optimist_scheduler.core.requests import NO_SLOT, Request, RequestTable
from optimist_scheduler.core.schedule import ScheduleView


class SchedulerState:
    """The requests of one worker."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.table = RequestTable(limits.max_num_seqs)
        self.blocks = BlockPool(
            limits.num_blocks,
            limits.max_num_seqs,
            limits.num_blocks_for(limits.max_length),
        )
        self.waiting: deque[Request] = deque()
        self.running: list[int] = []
        """Slots in the order of admission."""
        self.released_slots: list[int] = []
        """Slots that the next plan tells the worker to release."""
        self.unsent_windows: dict[int, None] = {}
        """Running slots whose window the worker does not have, in order."""
        self.in_flight: StepInFlight | None = None
        self.num_plans = 0

    def view(self) -> ScheduleView:
        """Returns what a decision is made from."""
        running = np.array(self.running, np.int32)
        return ScheduleView(self.limits, self.table, self.blocks, running, self.waiting)

    def is_in_flight(self, slot: int) -> bool:
        """Tells whether a plan that has not settled names the slot."""
        return self.in_flight is not None and slot in self.in_flight.slots

    def admit(self, request: Request) -> int:
        """Moves a request from waiting to running; returns its slot."""
        slot = self.table.admit(request)
        self.running.append(slot)
        if request.window is not None:
            self.unsent_windows[slot] = None
        return slot

    def release(self, request: Request) -> None:
        """Takes slot and blocks of a request back; the next plan tells the worker."""
        slot = request.slot
        self.blocks.release(slot)
        self.table.release(slot)
        self.unsent_windows.pop(slot, None)
        self.released_slots.append(slot)

    def preempt(self, request: Request) -> None:
        """Moves a running request to the front of the waiting ones; it will be computed anew."""
        self.running.remove(request.slot)
        self.release(request)
        self.waiting.appendleft(request)

    def end(self, request: Request) -> None:
        """Ends a request; its slot is released at once, or when the plan in flight has settled."""
        request.ended = True
        if request.slot == NO_SLOT:
            self.waiting.remove(request)
            return
        self.running.remove(request.slot)
        if not self.is_in_flight(request.slot):
            self.release(request)

    def check_integrity(self) -> None:
        """Raises AssertionError if the parts contradict each other."""
        self.blocks.check_integrity()
        self.table.check_integrity()
        for slot, request in enumerate(self.table.requests):
            if request is None:
                if self.blocks.num_blocks[slot] or slot in self.running:
                    raise AssertionError(f"slot {slot} is free and holds something")
            elif (slot in self.running) == request.ended:
                raise AssertionError(f"slot {slot}: {request.request_id} runs and has ended")
        if any(request.slot != NO_SLOT or request.ended for request in self.waiting):
            raise AssertionError("a waiting request has a slot, or has ended")
