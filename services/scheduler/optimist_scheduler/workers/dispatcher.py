"""The requests of all workers: who has which, who gets a new one, and where lost ones go on."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from optimist_common.network.endpoints import Peer
from optimist_scheduler.core.placement import Place, Placement, hash_beginning
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.requests.validate import NewRequest
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.values.output import Ended, Finished, FinishReason, RejectionError
from optimist_scheduler.core.windows.window import Window
from optimist_scheduler.journal.recorded_scheduler import AnyScheduler
from optimist_scheduler.observing import metrics


class Member(Protocol):
    """A worker, as far as its requests go."""

    @property
    def peer(self) -> Peer:
        """Names it."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether it takes plans."""
        ...

    @property
    def scheduler(self) -> AnyScheduler:
        """Its requests."""
        ...

    def wake(self) -> None:
        """Lets it look for something new to do."""
        ...


UNREACHED = "no worker has been reached yet"


class Dispatcher:
    """Does with the schedulers of several workers what is done with one.

    A worker takes part from when it was first reached. While none is connected, requests wait with
    one that was.
    """

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._placement: Placement[Peer] = Placement()
        self._num_arrived = 0
        self._mode: PauseMode | None = None
        """Of the pause in force."""
        self.num_moved = 0
        """Requests that went on at another worker, or at one that came back."""

    @property
    def members(self) -> Sequence[Member]:
        """Those that take part."""
        return self._members

    @property
    def schedulers(self) -> list[AnyScheduler]:
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

    def join(self, member: Member) -> None:
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

    def leave(self, member: Member) -> None:
        """Lets a worker take part no longer, which has no requests."""
        self._members.remove(member)
        self._placement.forget(member.peer)

    def add(self, new: NewRequest, now: float) -> None:
        """Lets a request wait for its turn, at one of the workers.

        Raises:
            RejectionError: It can never run, its id is taken, or too many wait.
        """
        if not self._members:
            raise RejectionError(FinishReason.OVERLOADED, UNREACHED)
        if self._find(new.request_id) is not None:
            raise RejectionError(FinishReason.REFUSED, "request_id: is in use by another request")
        member, is_only = self._members[0], len(self._members) == 1
        if not is_only:
            num_tokens = len(new.prompt_token_ids)
            caches = member.scheduler.config.enable_prefix_caching
            member = self._choose(
                num_tokens + len(new.output_token_ids),
                num_tokens + new.max_tokens,
                hash_beginning(new.prompt_token_ids, new.cache_salt) if caches else (),
            )
        member.scheduler.add(new, now, self._num_arrived + 1)
        self._num_arrived += 1
        member.wake()

    def abort(self, request_id: str) -> Finished | None:
        """Ends a request; returns its account, None if it is unknown or has ended."""
        scheduler = self._find(request_id)
        return None if scheduler is None else scheduler.abort(request_id)

    def set_priority(self, request_id: str, priority: int) -> bool:
        """Changes how urgent a request is; returns False if it is unknown or has ended."""
        scheduler = self._find(request_id)
        return scheduler is not None and scheduler.set_priority(request_id, priority)

    def set_window(self, request_id: str, window: Window) -> bool:
        """Takes what a request is expected to go on with; see `Scheduler.set_window`."""
        scheduler = self._find(request_id)
        return scheduler is not None and scheduler.set_window(request_id, window)

    def find_unaligned(self) -> list[str]:
        """Returns the requests that a step may wait for and that have no window."""
        return [each for scheduler in self.schedulers for each in scheduler.find_unaligned()]

    def pause(self, mode: PauseMode) -> list[Ended]:
        """Stops planning at all workers; returns the requests that this ended."""
        self._mode = mode
        return [ended for scheduler in self.schedulers for ended in scheduler.pause(mode)]

    def resume(self) -> None:
        """Goes on after a pause."""
        self._mode = None
        for scheduler in self.schedulers:
            scheduler.resume()

    def wake(self) -> None:
        """Lets all workers look for something new to do."""
        for member in self._members:
            member.wake()

    def evacuate(self, members: Iterable[Member]) -> list[Request]:
        """Takes all requests from workers that are not connected, the most urgent first."""
        requests: list[Request] = []
        for member in members:
            self._placement.forget(member.peer)
            requests += member.scheduler.evacuate()
        return sorted(requests, key=lambda request: request.order)

    def adopt(self, requests: Iterable[Request]) -> list[Ended]:
        """Finds each request a worker to go on at; returns the ends of those that fit none."""
        ended: list[Ended] = []
        for request in requests:
            member = self._choose(len(request.token_ids), request.wanted_length)
            end = member.scheduler.adopt(request)
            if end is not None:
                ended.append(end)
            elif member.is_connected:
                self.num_moved += request.is_displaced
                metrics.MOVED.inc(request.is_displaced)
                request.is_displaced = False
                member.wake()
        return ended

    def _find(self, request_id: str) -> AnyScheduler | None:
        for member in self._members:
            if member.scheduler.has(request_id):
                return member.scheduler
        return None

    def _choose(
        self, num_tokens: int, wanted_length: int, beginning: Sequence[bytes] = ()
    ) -> Member:
        places = [_place(member) for member in self._members]
        peer = self._placement.choose(places, num_tokens, wanted_length, beginning)
        return next(member for member in self._members if member.peer == peer)


def _place(member: Member) -> Place[Peer]:
    scheduler, config = member.scheduler, member.scheduler.config
    num_waiting = scheduler.num_waiting
    return Place(
        member.peer,
        member.is_connected,
        scheduler.num_running + num_waiting,
        config.max_num_seqs,
        num_waiting,
        config.max_num_waiting,
        config.max_length,
    )
