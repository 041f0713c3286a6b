"""Pauses that wait for their reply, and the pause in force."""

from collections.abc import Callable
from typing import NamedTuple

from optimist.scheduler.v1 import scheduler_pb2
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.values.output import Ended
from optimist_scheduler.gateways.stream import GatewayStream
from optimist_scheduler.workers.dispatcher import Dispatcher

OnReply = Callable[[GatewayStream, scheduler_pb2.Reply], None]


class PendingPause(NamedTuple):
    """A pause whose reply waits for the scheduler to come to rest."""

    stream: GatewayStream
    command_id: int
    mode: PauseMode


class Pauses:
    """Answers pauses once nothing runs any more; the latest one's mode applies."""

    def __init__(self, dispatcher: Dispatcher, reply: OnReply) -> None:
        self._dispatcher, self._reply = dispatcher, reply
        self._pending: list[PendingPause] = []
        self._answered_mode: PauseMode | None = None
        """Mode of the last pause that was answered, while it is in force."""

    def begin(self, stream: GatewayStream, command_id: int, mode: PauseMode) -> list[Ended]:
        """Pauses; returns the requests that this ends."""
        self._pending.append(PendingPause(stream, command_id, mode))
        stream.num_unanswered += 1
        return self._dispatcher.pause(mode)

    def answer(self) -> None:
        """Answers the pending pauses if nothing runs any more."""
        if self._pending and self._dispatcher.is_quiet:
            self._answered_mode = self._pending[-1].mode
            self._answer_all("")

    def resume(self) -> None:
        """Goes on; pauses that are pending have failed."""
        self._dispatcher.resume()
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
            self._dispatcher.resume()
        else:
            # The requests that a pause ends were ended when it began.
            self._dispatcher.pause(PauseMode.KEEP if mode is PauseMode.ABORT else mode)

    def _answer_all(self, error: str) -> None:
        pending, self._pending = self._pending, []
        for pause in pending:
            pause.stream.num_unanswered -= 1
            self._reply(pause.stream, scheduler_pb2.Reply(command_id=pause.command_id, error=error))
