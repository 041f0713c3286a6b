"""Pauses of all gateways: each is answered once nothing runs any more."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_common.scheduler_service.stream import GatewayStream


class Pausable(Protocol):
    """What can be paused."""

    @property
    def is_quiet(self) -> bool:
        """Whether a pause is in force and nothing runs any more."""
        ...

    def pause(self, mode: PauseMode) -> object:
        """Begins to pause."""
        ...

    def resume(self) -> None:
        """Goes on."""
        ...


class PendingPause(NamedTuple):
    """A pause whose reply waits until nothing runs any more."""

    stream: GatewayStream
    command_id: int
    mode: PauseMode


class Pauses:
    """Answers pauses once nothing runs any more; the latest one's mode applies."""

    def __init__(
        self, scheduler: Pausable, reply: Callable[[GatewayStream, int, str], None]
    ) -> None:
        """Takes what is paused, and what sends a reply: its stream, its command and an error."""
        self._scheduler, self._reply = scheduler, reply
        self._pending: list[PendingPause] = []
        self._answered_mode: PauseMode | None = None
        """Mode of the last pause that was answered, while it is in force."""

    def add(self, stream: GatewayStream, command_id: int, mode: PauseMode) -> None:
        """Notes a pause that begins."""
        self._pending.append(PendingPause(stream, command_id, mode))
        stream.num_unanswered += 1

    def answer(self) -> None:
        """Answers the pending pauses if nothing runs any more."""
        if self._pending and self._scheduler.is_quiet:
            self._answered_mode = self._pending[-1].mode
            self._answer_all("")

    def resume(self) -> None:
        """Goes on; pauses that are pending have failed."""
        self._scheduler.resume()
        self._answered_mode = None
        self._answer_all("pause: was ended by a resume before everything had come to rest")

    def withdraw(self, stream: GatewayStream) -> None:
        """Takes the pending pauses of a stream back; one that was answered stays in force."""
        kept = [pause for pause in self._pending if pause.stream is not stream]
        if len(kept) == len(self._pending):
            return
        self._pending = kept
        mode = kept[-1].mode if kept else self._answered_mode
        if mode is None:
            self._scheduler.resume()
        else:
            # The requests that a pause ends were ended when it began.
            self._scheduler.pause(PauseMode.KEEP if mode is PauseMode.ABORT else mode)

    def _answer_all(self, error: str) -> None:
        pending, self._pending = self._pending, []
        for pause in pending:
            pause.stream.num_unanswered -= 1
            self._reply(pause.stream, pause.command_id, error)
