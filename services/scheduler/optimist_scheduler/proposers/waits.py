"""Whether steps wait for windows, for how long, and what that has cost."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from optimist_scheduler.observing import metrics
from optimist_scheduler.proposers.links import ProposerLink

WAITING_SHARE = 7 / 8
"""Part of a pass that may go by while the next plan waits for windows: the rest is to send it."""
WAIT_MEMORY = 1 / 16
"""Weight of a wait among those by which the next one is estimated."""
FORGETTING = 1 / 64
"""By how much less is expected after each wait that did not seem to pay: to find out."""
OVERRUN_MEMORY = 1 / 64
"""By how much less a wait is expected to overrun after each that did not."""
ANSWER_MEMORY = PASS_MEMORY = 1 / 8
"""Weight of an answer, or of a pass, among those by which the next one's time is estimated."""


def find_slack(pass_seconds: float, seconds_in_pass: float) -> float:
    """Returns for how long the next plan may wait while the worker runs a pass, in seconds."""
    return max(pass_seconds * WAITING_SHARE - seconds_in_pass, 0.0)


class Wait(NamedTuple):
    """A wait for windows."""

    timeout: float
    """The longest that it may be, in seconds."""
    costs_nothing: bool
    """Whether it is to end before the worker has nothing to run."""


class WindowWaits:
    """Waits that pay and end in time.

    A wait costs the tokens that all requests would get while the worker has nothing to run; it
    saves those that lack a window a pass with a single token, or some tokens of one that is looked
    up. So it pays if their share exceeds that of the worker's wait in the pass.
    """

    def __init__(self, longest: float, *, pays_always: bool) -> None:
        """Takes the longest wait, in seconds, and whether any wait for a window pays."""
        self._longest, self._pays_always = longest, pays_always
        self.expected = longest
        """How long a wait is expected to be, in seconds."""
        self._overrun = 0.0
        self._answered = asyncio.Event()
        self.num_waits = 0
        """Steps that were held up."""
        self.num_late = 0
        """How many of them ended without the answer."""
        self.num_idle = 0
        """How many of them ended with nothing left for the worker to run."""
        self.seconds = 0.0
        """Time of all together."""
        self.answer_seconds = 0.0
        """How long proposers take to answer."""
        self.seconds_per_pass = self._seconds_before = 0.0
        """For how long a pass is held up, in the mean of the last ones."""

    @property
    def timeout(self) -> float:
        """When the timer is to end the next wait, in seconds.

        A timer is late by whatever the process does just then, so the latest overruns are left out
        of the time that is waited: of half of it at most.
        """
        return max(self._longest - self._overrun, self._longest / 2)

    def pays(
        self, num_lacking: float, num_running: int, pass_seconds: float, slack_seconds: float
    ) -> bool:
        """Returns whether a wait pays.

        `num_lacking` requests lack a window, each counted by the part of a pass that it loses, and
        `num_running` would wait with them; for `slack_seconds` the worker has something to run.
        """
        if not self._longest or num_lacking == 0:
            return False
        idle_seconds = max(self.expected - slack_seconds, 0.0)
        if self._pays_always or num_lacking * pass_seconds >= num_running * idle_seconds:
            return True
        self.expected *= 1 - FORGETTING
        return False

    def note_answer(self) -> None:
        """Lets those that wait look again at what they wait for."""
        self._answered.set()

    def note_seconds(self, seconds: float) -> None:
        """Takes how long an answer took."""
        self.answer_seconds += (seconds - self.answer_seconds) * ANSWER_MEMORY

    def note_pass(self) -> None:
        """Takes that a pass has ended, before which there may have been waits."""
        seconds, self._seconds_before = self.seconds - self._seconds_before, self.seconds
        self.seconds_per_pass += (seconds - self.seconds_per_pass) * PASS_MEMORY

    async def wait(
        self,
        find_awaited: Callable[[], list[ProposerLink]],
        slack_seconds: float,
        is_idle: Callable[[], bool],
    ) -> list[ProposerLink]:
        """Waits until no answer is due any more; returns whose are when the time is over.

        `is_idle` says whether the worker has nothing to run.
        """
        wait, started, awaited = self.begin(slack_seconds), perf_counter(), find_awaited()
        is_over = False
        try:
            async with asyncio.timeout(wait.timeout):
                while awaited and not (wait.costs_nothing and is_idle()):
                    self._answered.clear()
                    await self._answered.wait()
                    awaited = find_awaited()
        except TimeoutError:
            is_over = True
        finally:
            seconds = perf_counter() - started
            self.note(wait, seconds, is_over=is_over, is_in_vain=bool(awaited), is_idle=is_idle())
        return awaited if is_over else []

    def begin(self, slack_seconds: float) -> Wait:
        """Returns how long to wait; a wait that is over before the worker is idle costs nothing."""
        if slack_seconds > self.expected:
            return Wait(slack_seconds, costs_nothing=True)
        return Wait(self.timeout, costs_nothing=False)

    def note(
        self, wait: Wait, seconds: float, *, is_over: bool, is_in_vain: bool, is_idle: bool
    ) -> None:
        """Takes a wait that has ended.

        `is_over` if the timer ended it, `is_in_vain` if answers were still due, `is_idle` if the
        worker had nothing to run then.
        """
        metrics.PROPOSER_WAIT_SECONDS.observe(seconds)
        metrics.PROPOSER_LATE_WAITS.inc(is_in_vain)
        metrics.PROPOSER_IDLE_WAITS.inc(is_idle)
        self.num_waits += 1
        self.num_late += is_in_vain
        self.num_idle += is_idle
        self.seconds += seconds
        self.expected += (seconds - self.expected) * WAIT_MEMORY
        if is_over and not wait.costs_nothing:
            self._overrun = max(seconds - wait.timeout, self._overrun * (1 - OVERRUN_MEMORY))
