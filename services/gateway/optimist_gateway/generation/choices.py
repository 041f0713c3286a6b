"""The choices of one request, together."""

import asyncio
from collections.abc import Iterator

from optimist_gateway.generation.choice import Choice, TakePiece


class Choices:
    """Runs the choices of a request; the first failure ends all of them."""

    def __init__(self, number: int) -> None:
        """Begins without any; so many are added before they start."""
        self._choices: list[Choice] = []
        self._num_open = number
        self._error: Exception | None = None
        self._is_paused = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once no more pieces come; `wait` says why."""

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, choice: Choice) -> None:
        """Adds the next one."""
        self._choices.append(choice)

    def start(self, tell: TakePiece) -> None:
        """Begins to tell pieces, each in the moment in which its step arrives."""
        for choice in self._choices:
            choice.start(tell, self._end)
            if self._is_paused:
                choice.pause()

    def pause(self) -> None:
        """Lets what the scheduler says wait, in bounds: a choice that waits too long fails."""
        self._is_paused = True
        for choice in self._choices:
            choice.pause()

    def resume(self) -> None:
        """Goes on with what waits."""
        self._is_paused = False
        for choice in self._choices:
            # What one choice says may be too much again.
            if self._is_paused:
                break
            choice.resume()

    async def wait(self) -> None:
        """Returns when every choice is complete, or all are closed.

        Raises:
            ApiError: A choice failed at the scheduler.
            SchedulerUnavailableError: The stream to the scheduler broke.
            SlowReaderError: The choices were paused for too long.
        """
        await self.ended
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends those that run."""
        for choice in self._choices:
            choice.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _end(self, error: Exception | None) -> None:
        self._num_open -= 1
        self._error = self._error or error
        if (error is not None or not self._num_open) and not self.ended.done():
            self.ended.set_result(None)
