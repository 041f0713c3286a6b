"""The time that steps wait for the answers of proposers."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from optimist_scheduler.core.windows.wait_value import WaitBudget, WaitValue
from optimist_scheduler.observing import metrics
from optimist_scheduler.proposers.link import ProposerLink

FindAwaited = Callable[[], list[ProposerLink]]


class WindowWaits:
    """Waits that end in time, and what they have cost."""

    def __init__(self, longest: float, *, pays_always: bool) -> None:
        """Takes the longest wait, in seconds, and whether any wait for a window pays."""
        self._longest, self._pays_always = longest, pays_always
        self._value, self._budget = WaitValue(longest), WaitBudget(longest)
        self._answered = asyncio.Event()
        self.num_waits = 0
        """Steps that were held up."""
        self.num_late = 0
        """How many of them ended without the answer."""
        self.num_idle = 0
        """How many of them ended with nothing left for the worker to run."""
        self.seconds = 0.0
        """Time of all together."""

    def is_worth_one(self, num_lacking: int, num_running: int, pass_seconds: float) -> bool:
        """Returns whether to wait; see `WaitValue.pays`."""
        if not self._longest:
            return False
        if self._pays_always:
            return num_lacking > 0
        return self._value.pays(num_lacking, num_running, pass_seconds)

    def note_answer(self) -> None:
        """Lets those that wait look again at what they wait for."""
        self._answered.set()

    async def wait(self, find_awaited: FindAwaited) -> list[ProposerLink]:
        """Waits until nothing is awaited any more; returns what still is when the time is over.

        Args:
            find_awaited: Returns the links whose answers are due.
        """
        started = perf_counter()
        awaited = find_awaited()
        timeout, is_late = self._budget.timeout, False
        try:
            async with asyncio.timeout(timeout):
                while awaited:
                    self._answered.clear()
                    await self._answered.wait()
                    awaited = find_awaited()
        except TimeoutError:
            metrics.PROPOSER_LATE.inc()
            self.num_late += 1
            is_late = True
        finally:
            seconds = perf_counter() - started
            if is_late:
                self._budget.observe(seconds, timeout)
            metrics.PROPOSER_WAITS.inc()
            metrics.PROPOSER_WAIT_SECONDS.observe(seconds)
            self.num_waits += 1
            self.seconds += seconds
            self._value.observe(seconds)
        return awaited
