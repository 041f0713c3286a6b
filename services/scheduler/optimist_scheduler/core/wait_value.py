"""Whether a step had better wait for windows than go on without."""

MEMORY = 1 / 16
"""Weight of a wait among those that tell how long the next one will be."""
FORGETTING = 1 / 64
"""By how much less is expected after each wait that did not seem to pay: to find out."""


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
        """Tells whether a wait pays.

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
