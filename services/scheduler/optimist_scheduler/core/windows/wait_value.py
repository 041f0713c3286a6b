"""Whether a step had better wait for windows than go on without."""

MEMORY = 1 / 16
"""Weight of a wait among those by which the next one is estimated."""
FORGETTING = 1 / 64
"""By how much less is expected after each wait that did not seem to pay: to find out."""

OVERRUN_MEMORY = 1 / 64
"""By how much less a wait is expected to overrun after each that did not."""


class WaitBudget:
    """Ends waits so early that they are over in time.

    A timer is late by whatever the process does just then, so the latest overruns are left out of
    the time that is waited: of half of it at most.
    """

    def __init__(self, longest: float) -> None:
        """Takes the longest that a wait may be, in seconds."""
        self._longest = longest
        self._overrun = 0.0

    @property
    def timeout(self) -> float:
        """When the timer is to end the next wait, in seconds."""
        return max(self._longest - self._overrun, self._longest / 2)

    def observe(self, seconds: float, timeout: float) -> None:
        """Takes how long a wait was that the timer ended, and what the timer was set to."""
        faded = self._overrun * (1 - OVERRUN_MEMORY)
        self._overrun = max(seconds - timeout, faded)


class WaitValue:
    """Compares what a wait costs with what it saves.

    It costs the tokens that all requests would get meanwhile; it saves those that lack a window a
    pass with a single token. So it pays if their share exceeds that of the wait in the pass.
    """

    def __init__(self, longest: float) -> None:
        """Expects the longest wait, in seconds, at first."""
        self._expected = longest

    @property
    def expected(self) -> float:
        """How long the next wait will probably be, in seconds."""
        return self._expected

    def observe(self, seconds: float) -> None:
        """Takes how long a wait was."""
        self._expected += (seconds - self._expected) * MEMORY

    def pays(self, num_lacking: int, num_running: int, pass_seconds: float) -> bool:
        """Returns whether a wait pays.

        Args:
            num_lacking: Requests that lack a window.
            num_running: Requests that would wait with them; 0 if none would have to.
            pass_seconds: How long a pass takes.
        """
        if num_lacking == 0:
            return False
        if num_lacking * pass_seconds >= num_running * self._expected:
            return True
        self._expected *= 1 - FORGETTING
        return False
