"""The workers and their requests: who has which, who gets a new one, where lost ones go on."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.network.endpoints import Peer
from optimist_common.scheduler_service.fields import PAUSE_MODES
from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_scheduler.core.base.values import (
    Ended,
    Finished,
    FinishReason,
    RejectionError,
    SchedulerStats,
    StepOutputs,
)
from optimist_scheduler.core.placement import Placement, hash_beginning
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.request import NewRequest, Request
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.wait import OverloadedError, Turns
from optimist_scheduler.core.windows.window import Window, WindowError
from optimist_scheduler.journal import OFF, Journal, recorded
from optimist_scheduler.observing import metrics
from optimist_scheduler.workers.description import WorkerDescription
from optimist_scheduler.workers.translate import plan_message, read_window

_MODES = {mode: message for message, mode in PAUSE_MODES.items()}
UNREACHED = "no worker has been reached yet"


class Worker:
    """A worker that was not reached yet; it has a scheduler from when it is."""

    def __init__(self, peer: Peer, journal: Journal = OFF) -> None:
        self.peer = peer
        self._journal = journal
        self._scheduler: Scheduler | None = None
        self.description: WorkerDescription | None = None
        """The worker, as it was when it was last reached; None before."""
        self.is_connected = False
        """Whether the worker takes plans."""

    @property
    def scheduler(self) -> Scheduler:
        """Its requests; raises LookupError before `begin`."""
        if self._scheduler is None:
            raise LookupError(f"the worker at {self.peer.target} has not been reached")
        return self._scheduler

    @property
    def has_scheduler(self) -> bool:
        """Whether the worker has ever been reached."""
        return self._scheduler is not None

    def wake(self) -> None:
        """Looks for something new to do."""

    @recorded(lambda self, description: self.entry(reached=description.message))
    def begin(self, description: WorkerDescription) -> list[Ended]:
        """Begins anew with a worker that was reached; returns the ends of what does not fit it."""
        self.description, self.is_connected = description, True
        if self._scheduler is not None:
            return self._scheduler.restart(description.config, description.timings)
        self._scheduler = Scheduler(description.config, description.timings)
        return []

    def entry(self, **event: Any) -> dict[str, Any]:
        """Returns the fields of an entry of the journal on this worker."""
        return {"worker": self.peer.target, **event}

    @recorded(lambda self: self.entry(lost={}))
    def evacuate(self) -> list[Request]:
        """Gives all requests away: the worker is lost."""
        return self.scheduler.evacuate()

    @recorded(lambda self, reason: self.entry(lost={"reason": reason}))
    def fail(self, reason: str) -> list[Ended]:
        """Ends all requests: what the scheduler knows of them may be wrong."""
        return self.scheduler.fail(reason)

    @recorded(lambda self: self.entry(prepared={}))
    def prepare(self) -> None:
        """Computes the next plan ahead."""
        self.scheduler.prepare()

    @recorded(lambda self, now: self.entry(now=now, scheduled={}))
    def schedule(self, now: float) -> worker_pb2.ExecuteRequest | None:
        """Returns the next plan; None if nothing can run, or had better wait."""
        plan = self.scheduler.schedule(now)
        return None if plan is None else plan_message(plan)

    @recorded(lambda self, result, message: self.entry(result=message))
    def settle(self, result: StepResult, message: worker_pb2.ExecuteResponse) -> StepOutputs:
        """Takes the next result; raises ResultError if it cannot be read as that."""
        return self.scheduler.settle(result)

    @recorded(lambda self: self.entry(closed={}))
    def end_journal(self) -> SchedulerStats:
        """Records the totals: nothing more of this worker comes."""
        return self.scheduler.stats


class Dispatcher:
    """Does with the schedulers of several workers what is done with one.

    A worker takes part from when it was first reached. While none is connected, requests wait with
    one that was.
    """

    def __init__(self, journal: Journal = OFF) -> None:
        self._journal = journal
        self._members: list[Worker] = []
        self._placement = Placement[Worker]()
        self._turns = Turns()
        self._num_arrived = 0
        self._mode: PauseMode | None = None
        """Of the pause in force."""
        self.num_moved = 0
        """Requests that went on at another worker, or at one that came back."""

    @property
    def members(self) -> Sequence[Worker]:
        """Those that take part."""
        return self._members

    @property
    def schedulers(self) -> list[Scheduler]:
        """Of those that take part."""
        return [member.scheduler for member in self._members]

    @property
    def num_workers(self) -> int:
        """Workers that are connected."""
        return sum(member.is_connected for member in self._members)

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return sum(scheduler.num_running for scheduler in self.schedulers)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return sum(scheduler.num_waiting for scheduler in self.schedulers)

    @property
    def is_paused(self) -> bool:
        """Whether a pause is in force."""
        return self._mode is not None

    @property
    def is_quiet(self) -> bool:
        """Whether a pause is in force and nothing runs any more."""
        return self.is_paused and all(scheduler.is_quiet for scheduler in self.schedulers)

    def join(self, member: Worker) -> None:
        """Lets a worker take part that was reached."""
        if member in self._members:
            return
        self._members.append(member)
        if self._mode is not None:
            # What a pause ends was ended when it began.
            is_abort = self._mode is PauseMode.ABORT
            member.scheduler.pause(PauseMode.KEEP if is_abort else self._mode)
        elif member.scheduler.is_paused:
            # The pause ended while it took no part.
            member.scheduler.resume()

    @recorded(lambda self, member: member.entry(left={}))
    def leave(self, member: Worker) -> None:
        """Lets a worker take part no longer, which has no requests."""
        self._members.remove(member)
        self._placement.forget(member)

    @recorded(
        lambda self, new, now, message=None: {
            "added": message,
            "now": now,
            "owner": new.owner,
            "is_followed": new.is_followed,
        }
    )
    def add(self, new: NewRequest, now: float, message: scheduler_pb2.Add | None = None) -> None:
        """Lets a request wait for its turn at one of the workers; `message` is for the journal.

        Raises:
            RejectionError: It can never run, its id is taken, or too many wait.
        """
        if not self._members:
            raise RejectionError(FinishReason.OVERLOADED, UNREACHED)
        if self.has(new.request_id):
            raise RejectionError(FinishReason.REFUSED, "request_id: is in use by another request")
        among, refused = list(self._members), list[OverloadedError]()
        while among:
            member = self._choose_for(new, among)
            try:
                member.scheduler.add(new, now, self._num_arrived + 1)
            except OverloadedError as error:
                refused.append(error)
                among = _find_others(among, member, len(new.prompt_token_ids) + new.max_tokens)
            else:
                self._num_arrived += 1
                member.wake()
                return
        # When to come again goes by the first worker that has room.
        first = min(refused, key=lambda error: error.soonest)
        seconds = self._turns.take(now, first.soonest, first.turn_seconds / len(refused))
        reason = f"{first}; try again in {math.ceil(seconds)} seconds"
        raise RejectionError(FinishReason.OVERLOADED, reason, seconds)

    def _choose_for(self, new: NewRequest, among: Sequence[Worker]) -> Worker:
        if len(among) == 1:
            return among[0]
        num_tokens = len(new.prompt_token_ids)
        caches = among[0].scheduler.config.enable_prefix_caching
        return self._placement.choose(
            among,
            num_tokens + len(new.output_token_ids),
            num_tokens + new.max_tokens,
            hash_beginning(new.prompt_token_ids, new.cache_salt) if caches else (),
        )

    def has(self, request_id: str) -> bool:
        """Returns whether a request runs or waits at a worker."""
        return self._find(request_id) is not None

    @recorded(lambda self, request_id: {"aborted": request_id})
    def abort(self, request_id: str) -> Finished | None:
        """Ends a request; returns its account, None if it is unknown or has ended."""
        scheduler = self._find(request_id)
        return None if scheduler is None else scheduler.abort(request_id)

    @recorded(
        lambda self, request_id, priority: {
            "priority": {"request_id": request_id, "priority": priority}
        }
    )
    def set_priority(self, request_id: str, priority: int) -> bool:
        """Changes how urgent a request is; returns False if it is unknown or has ended."""
        scheduler = self._find(request_id)
        return scheduler is not None and scheduler.set_priority(request_id, priority)

    @recorded(lambda self, messages: {"windows": {"windows": messages}})
    def take_windows(self, messages: Sequence[proposer_pb2.Window]) -> list[bool | ValueError]:
        """Takes windows of a proposer; returns whether each is of use, or why it never is."""
        outcomes: list[bool | ValueError] = [False] * len(messages)
        read: dict[int, tuple[str, Window]] = {}
        for index, message in enumerate(messages):
            try:
                read[index] = message.request_id, read_window(message)
            except ValueError as error:
                outcomes[index] = error
        for index, outcome in zip(read, self.set_windows([*read.values()]), strict=True):
            outcomes[index] = outcome
        return outcomes

    def set_windows(self, windows: Sequence[tuple[str, Window]]) -> list[bool | WindowError]:
        """Takes what requests are expected to go on with; see `Scheduler.set_windows`."""
        outcomes: list[bool | WindowError] = [False] * len(windows)
        for scheduler in self.schedulers:
            own = {index: each for index, each in enumerate(windows) if scheduler.has(each[0])}
            for index, outcome in zip(own, scheduler.set_windows([*own.values()]), strict=True):
                outcomes[index] = outcome
        return outcomes

    def find_unaligned(self) -> dict[str, float]:
        """Returns what `Scheduler.find_unaligned` does, of all workers."""
        unaligned: dict[str, float] = {}
        for scheduler in self.schedulers:
            unaligned |= scheduler.find_unaligned()
        return unaligned

    @recorded(lambda self, mode: {"paused": _MODES[mode]})
    def pause(self, mode: PauseMode) -> list[Ended]:
        """Stops planning at all workers; returns the requests that this ended."""
        self._mode = mode
        return [ended for scheduler in self.schedulers for ended in scheduler.pause(mode)]

    @recorded(lambda self: {"resumed": {}})
    def resume(self) -> None:
        """Goes on after a pause."""
        self._mode = None
        for scheduler in self.schedulers:
            scheduler.resume()

    def wake(self) -> None:
        """Lets all workers look for something new to do."""
        for member in self._members:
            member.wake()

    def evacuate(self, members: Iterable[Worker]) -> list[Request]:
        """Takes all requests from workers that are not connected, the most urgent first."""
        requests: list[Request] = []
        for member in members:
            self._placement.forget(member)
            requests += member.evacuate()
        return sorted(requests, key=lambda request: request.order)

    def fail(self, member: Worker, reason: str) -> list[Ended]:
        """Ends all requests of a worker that is not connected; see `Worker.fail`."""
        self._placement.forget(member)
        return member.fail(reason)

    @recorded(
        lambda self, requests: {
            "adopted": {"request_ids": [request.request_id for request in requests]}
        }
    )
    def adopt(self, requests: Sequence[Request]) -> list[Ended]:
        """Finds each request a worker to go on at; returns the ends of those that fit none."""
        ended: list[Ended] = []
        for request in requests:
            lengths = len(request.token_ids), request.wanted_length
            member = self._placement.choose(self._members, *lengths)
            end = member.scheduler.adopt(request)
            if end is not None:
                ended.append(end)
            elif member.is_connected:
                self.num_moved += request.is_displaced
                metrics.MOVED.inc(request.is_displaced)
                request.is_displaced = False
                member.wake()
        return ended

    def _find(self, request_id: str) -> Scheduler | None:
        for member in self._members:
            if member.scheduler.has(request_id):
                return member.scheduler
        return None


def _find_others(among: Sequence[Worker], member: Worker, wanted_length: int) -> list[Worker]:
    """Returns those that are connected and hold as much of a request as one worker."""
    length = min(wanted_length, member.scheduler.config.max_length)
    return [
        each
        for each in among
        if each is not member and each.is_connected and each.scheduler.config.max_length >= length
    ]
