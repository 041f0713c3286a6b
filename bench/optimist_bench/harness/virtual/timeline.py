"""Virtual time: events in order, cores, and services that do one job after the other."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

Call = Callable[[], None]


class Timeline:
    """Events by their time, those of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual time, in microseconds."""
        self._events: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()

    def after(self, delay_us: float, call: Call) -> None:
        """Calls something so many microseconds from now."""
        heapq.heappush(self._events, (self.now + delay_us, next(self._numbers), call))

    def run(self) -> None:
        """Goes on until nothing is to happen any more."""
        while self._events:
            self.now, _, call = heapq.heappop(self._events)
            call()


class Cores:
    """Processor cores: who comes first gets the next, and keeps it until the job is done."""

    def __init__(self, number: int) -> None:
        """Takes how many there are; 0 for as many as are asked for."""
        self._is_bounded, self._num_free = number > 0, number
        self._waiting: deque[Call] = deque()

    def take(self, begin: Call) -> None:
        """Calls `begin` as soon as there is a core for it."""
        if self._is_bounded and not self._num_free:
            self._waiting.append(begin)
            return
        self._num_free -= 1
        begin()

    def give_back(self) -> None:
        """Ends the use of a core."""
        self._num_free += 1
        if self._waiting:
            self.take(self._waiting.popleft())


class Service:
    """A process: its jobs run in turn, each on a core from its beginning to its end.

    A job decides at its beginning, with what has arrived by then, and `spend`s the time that this
    takes. What it sends leaves at its end.
    """

    def __init__(self, timeline: Timeline, cores: Cores) -> None:
        self._timeline, self._cores = timeline, cores
        self._jobs: deque[Call] = deque()
        self._is_busy = False
        self._job_us = 0.0
        self._sent: list[tuple[float, Call]] = []
        self.busy_us = 0.0
        """Processor time of all jobs that have begun."""

    @property
    def time(self) -> float:
        """The time that the running job has come to, in microseconds."""
        return self._timeline.now + self._job_us

    def ask(self, job: Call) -> None:
        """Lets a job be done after those that were asked for before."""
        self._jobs.append(job)
        self._go_on()

    def spend(self, microseconds: float) -> None:
        """Lets the running job take longer."""
        self._job_us += microseconds
        self.busy_us += microseconds

    def send(self, delay_us: float, call: Call) -> None:
        """Calls something so many microseconds after the end of the running job."""
        self._sent.append((delay_us, call))

    def _go_on(self) -> None:
        if self._jobs and not self._is_busy:
            self._is_busy = True
            self._cores.take(self._begin)

    def _begin(self) -> None:
        self._job_us, self._sent = 0.0, []
        self._jobs.popleft()()
        self._timeline.after(self._job_us, partial(self._end, self._sent))

    def _end(self, sent: list[tuple[float, Call]]) -> None:
        for delay_us, call in sent:
            self._timeline.after(delay_us, call)
        self._job_us, self._is_busy = 0.0, False
        self._cores.give_back()
        self._go_on()
