"""What the stages of a pipeline hand each other: commands, hidden states and verdicts.

A sender never waits for the receiver, who may be at work on another plan. Gloo copies nothing
before the receiver asks for it, so what was sent is kept until it must have arrived.
"""

import json
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from optimist_worker.execution.group import (
    ENDLESS,
    GroupError,
    end_process,
    naming_the_cause,
    receive_message,
    split_message,
)
from optimist_worker.execution.ranks import Ranks

_MOST_REASON = 500


class _Sending(NamedTuple):
    """Something on its way."""

    work: Any
    tensor: torch.Tensor
    ends_plan: bool
    """Whether it was the last that the next stage needs for a plan."""


class StageLink:
    """One stage's ends of the lines between stages; rank and number of a stage are the same."""

    def __init__(self, ranks: Ranks) -> None:
        """Opens the lines; called by all stages in the same order as other groups are made."""
        self._ranks = ranks
        self._commands = dist.new_group(backend="gloo", timeout=ENDLESS)
        self._states = dist.new_group(backend="gloo", timeout=ENDLESS)
        self._verdicts = dist.new_group(backend="gloo", timeout=ENDLESS)
        self._sendings: deque[_Sending] = deque()
        self._arrived: SimpleQueue[bytes] = SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self._listener = threading.Thread(target=self._listen, name="verdicts", daemon=True)

    def command(self, stage: int, data: bytes) -> None:
        """Sends a command from the first stage to another."""
        self._send(data, stage, self._commands)

    def next_command(self, timeout_seconds: float | None) -> bytes:
        """Waits for the first stage's next command; GroupError: it is gone or silent for longer."""
        return _receive(0, self._commands, timeout_seconds)

    def hand_on(self, number: int, hidden: torch.Tensor | None, failure: str) -> None:
        """Gives the next stage what it goes on from in a pass, or why there is nothing.

        Hidden states are `[num_tokens, hidden_size]`.
        """
        following = self._ranks.rank + 1
        num_tokens = 0 if hidden is None else len(hidden)
        head = json.dumps([number, num_tokens, failure[:_MOST_REASON]]).encode()
        self._send(head, following, self._states)
        if hidden is not None:
            # nccl moves it from device to device, after what computes it.
            tensor = hidden.contiguous()
            with naming_the_cause():
                work = dist.isend(tensor, following)
            self._sendings.append(_Sending(work, tensor, ends_plan=False))
        self._sendings.append(self._sendings.pop()._replace(ends_plan=True))

    def take_over(
        self, number: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor | None, str]:
        """Waits for what the stage before hands on in a pass, or how it or one before has failed.

        Raises GroupError if that stage is gone, or at another pass.
        """
        before = self._ranks.rank - 1
        given, num_tokens, failure = json.loads(_receive(before, self._states, None))
        if given != number:
            raise GroupError(f"pass {given} of the stage before is pass {number} here")
        if failure:
            return None, failure
        hidden = torch.empty((num_tokens, hidden_size), dtype=dtype, device=device)
        with naming_the_cause():
            dist.recv(hidden, before)
        return hidden, ""

    def send_verdict(self, data: bytes) -> None:
        """Sends what came of a plan from the last stage to the first."""
        # All that was sent before has been asked for: the first stage always listens.
        self.forget_all()
        self._send(data, 0, self._verdicts)

    def listen(self) -> None:
        """Begins, in the first stage, to listen to the last one; the process ends with that one."""
        self._listener.start()

    @property
    def has_verdict(self) -> bool:
        """Whether a verdict has arrived at the first stage that was not taken."""
        return not self._arrived.empty()

    def take_verdict(self) -> bytes:
        """Waits, in the first stage, for what came of the next plan."""
        return self._arrived.get()

    def on_verdict(self, wake: Callable[[], None] | None) -> None:
        """Has something called, in the thread that listens, when a verdict has arrived."""
        self._wake = wake

    def _listen(self) -> None:
        while True:
            try:
                verdict = _receive(self._ranks.num_stages - 1, self._verdicts, None)
            except GroupError as error:
                end_process(f"the last stage is gone: {error}")
            if not verdict:
                return
            self._arrived.put(verdict)
            if (wake := self._wake) is not None:
                wake()

    def forget_plan(self) -> None:
        """Lets go of what was sent for the oldest plan; its verdict is there."""
        while self._sendings and not self._forget().ends_plan:
            pass

    def forget_all(self) -> None:
        """Waits until all that was sent has arrived."""
        while self._sendings:
            self._forget()

    def close(self) -> None:
        """Waits, in the first stage, for the end, which the last announces by an empty verdict."""
        self._listener.join()
        self.forget_all()

    def _forget(self) -> _Sending:
        sending = self._sendings.popleft()
        with naming_the_cause():
            sending.work.wait()
        return sending

    def _send(self, data: bytes, stage: int, group: Any) -> None:
        for part in split_message(data):
            with naming_the_cause():
                work = dist.isend(part, stage, group=group)
            self._sendings.append(_Sending(work, part, ends_plan=False))


def _receive(stage: int, group: Any, timeout_seconds: float | None) -> bytes:
    return receive_message(lambda part: dist.irecv(part, stage, group=group), timeout_seconds)
