"""The requests of all workers: who has which, who gets a new one, and where lost ones go on."""

from collections.abc import Iterable, Sequence

from optimist_common.endpoints import Peer
from optimist_scheduler import metrics
from optimist_scheduler.core.output import Ended, Finished, FinishReason, RejectionError
from optimist_scheduler.core.placement import Place, Placement, hash_beginning
from optimist_scheduler.core.requests import Request
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.validate import NewRequest
from optimist_scheduler.core.window import Window
from optimist_scheduler.engine import Engine
from optimist_scheduler.recorded_scheduler import AnyScheduler

UNREACHED = "no worker has been reached yet"


class Dispatcher:
    """Does with the schedulers of several workers what is done with one.

    A worker takes part from when it was first reached. While none is connected, requests wait with
    one that was.
    """

    def __init__(self) -> None:
        self._engines: list[Engine] = []
        self._placement: Placement[Peer] = Placement()
        self._num_arrived = 0
        self._mode: PauseMode | None = None
        """Of the pause in force."""
        self.num_moved = 0
        """Requests that went on at another worker, or at one that came back."""

    @property
    def engines(self) -> Sequence[Engine]:
        """Those that take part."""
        return self._engines

    @property
    def schedulers(self) -> list[AnyScheduler]:
        """Of those that take part."""
        return [engine.scheduler for engine in self._engines]

    @property
    def num_workers(self) -> int:
        """Workers that are connected."""
        return sum(engine.is_connected for engine in self._engines)

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

    def join(self, engine: Engine) -> None:
        """Lets a worker take part that was reached."""
        if engine in self._engines:
            return
        self._engines.append(engine)
        if self._mode is not None:
            # What a pause ends was ended when it began.
            is_abort = self._mode is PauseMode.ABORT
            engine.scheduler.pause(PauseMode.KEEP if is_abort else self._mode)

    def leave(self, engine: Engine) -> None:
        """Lets a worker take part no longer, which has no requests."""
        self._engines.remove(engine)
        self._placement.forget(engine.peer)

    def add(self, new: NewRequest, now: float) -> None:
        """Lets a request wait for its turn, at one of the workers.

        Raises:
            RejectionError: It can never run, its id is taken, or too many wait.
        """
        if not self._engines:
            raise RejectionError(FinishReason.OVERLOADED, UNREACHED)
        if self._find(new.request_id) is not None:
            raise RejectionError(FinishReason.REFUSED, "request_id: is in use by another request")
        engine, is_only = self._engines[0], len(self._engines) == 1
        if not is_only:
            num_tokens = len(new.prompt_token_ids)
            caches = engine.scheduler.config.enable_prefix_caching
            engine = self._choose(
                num_tokens + len(new.output_token_ids),
                num_tokens + new.max_tokens,
                hash_beginning(new.prompt_token_ids, new.cache_salt) if caches else (),
            )
        engine.scheduler.add(new, now, self._num_arrived + 1)
        self._num_arrived += 1
        engine.wake()

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
        """Returns the requests that have a prediction and no window to draft from."""
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
        for engine in self._engines:
            engine.wake()

    def evacuate(self, engines: Iterable[Engine]) -> list[Request]:
        """Takes all requests from workers that are not connected, the most urgent first."""
        requests: list[Request] = []
        for engine in engines:
            self._placement.forget(engine.peer)
            requests += engine.scheduler.evacuate()
        return sorted(requests, key=lambda request: request.order)

    def adopt(self, requests: Iterable[Request]) -> list[Ended]:
        """Finds each request a worker to go on at; returns the ends of those that fit none."""
        ended: list[Ended] = []
        for request in requests:
            engine = self._choose(len(request.token_ids), request.wanted_length)
            end = engine.scheduler.adopt(request)
            if end is not None:
                ended.append(end)
            elif engine.is_connected:
                self.num_moved += request.is_displaced
                metrics.MOVED.inc(request.is_displaced)
                request.is_displaced = False
                engine.wake()
        return ended

    def _find(self, request_id: str) -> AnyScheduler | None:
        for engine in self._engines:
            if engine.scheduler.has(request_id):
                return engine.scheduler
        return None

    def _choose(
        self, num_tokens: int, wanted_length: int, beginning: Sequence[bytes] = ()
    ) -> Engine:
        places = [_place(engine) for engine in self._engines]
        peer = self._placement.choose(places, num_tokens, wanted_length, beginning)
        return next(engine for engine in self._engines if engine.peer == peer)


def _place(engine: Engine) -> Place[Peer]:
    scheduler, config = engine.scheduler, engine.scheduler.config
    num_waiting = scheduler.num_waiting
    return Place(
        engine.peer,
        engine.is_connected,
        scheduler.num_running + num_waiting,
        config.max_num_seqs,
        num_waiting,
        config.max_num_waiting,
        config.max_length,
    )
