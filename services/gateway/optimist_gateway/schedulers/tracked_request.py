"""A request as the gateway knows it, enough to go on at another scheduler or to wait for one."""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_gateway.core.answer.output import StepLogprobs, StepOutput
from optimist_gateway.core.routing import prefix_key
from optimist_gateway.schedulers.request_stream import RequestStream

MAX_LOSSES = 5
"""Schedulers that may be lost one after the other without a token in between: what ends each of
them is not tried on more."""


class TrackedRequest:
    """A request, its output so far, and how often it was lost."""

    __slots__ = (
        "_num_losses",
        "_num_output_at_begin",
        "_num_output_at_loss",
        "_num_output_at_wait",
        "_waited_seconds",
        "_waits_since",
        "add",
        "is_ending",
        "name",
        "num_prompt_logprobs",
        "num_runs",
        "output",
        "prefix",
        "refused_by",
        "stream",
        "was_lost",
    )

    def __init__(self, add: scheduler_pb2.Add, abort: Callable[..., None]) -> None:
        """Begins without output.

        Args:
            add: The command, whose handle, name and output are set by `next_add`.
            abort: Ends the request that it gets, see `RequestStream`.
        """
        self.add = add
        self.name = add.request_id
        self.prefix = prefix_key(add.cache_salt, add.prompt_token_ids)
        self.stream = RequestStream(partial(abort, self))
        self.output = array("i")
        """The output so far."""
        self.num_prompt_logprobs = 0
        """Tokens of the prompt, after the first, whose log-probabilities came."""
        self.num_runs = 0
        """How often it was sent to a scheduler."""
        self.is_ending = False
        """Whether it was ended here and waits for its account alone."""
        self.was_lost = False
        """Whether it lost its scheduler, so that it must not end for want of room."""
        self.refused_by: set[str] = set()
        """Schedulers that had no room for it."""
        self._num_losses = 0
        self._num_output_at_begin = self._num_output_at_loss = self._num_output_at_wait = 0
        self._waited_seconds = 0.0
        self._waits_since = 0.0

    @property
    def length(self) -> int:
        """Tokens that prompt and output may have together."""
        return len(self.add.prompt_token_ids) // 4 + self.add.max_tokens

    def next_add(self, handle: int) -> scheduler_pb2.Add:
        """Returns the command that lets the request begin, or go on after its output."""
        self.num_runs += 1
        self._num_output_at_begin = len(self.output)
        self.add.handle = handle
        if self.num_runs > 1:
            # Schedulers that share proposers have names in common.
            self.add.request_id = f"{self.name}~{self.num_runs}"
            self.add.output_token_ids = to_bytes(self.output)
        return self.add

    def deliver(self, output: StepOutput) -> None:
        """Hands an output on and takes note of it; what came of the prompt is left out."""
        self.output.extend(output.token_ids)
        if output.logprobs is not None and output.logprobs.prompt:
            output = replace(output, logprobs=self._new_logprobs(output.logprobs))
            if output.logprobs is None and not output.token_ids and output.finished is None:
                return
        if output.finished is not None and self._num_output_at_begin:
            output = replace(output, finished=replace(output.finished, is_whole=False))
        self.stream.deliver(output)

    def may_go_on(self) -> bool:
        """Notes that its scheduler was lost; returns whether it may be tried at another one."""
        if len(self.output) > self._num_output_at_loss:
            self._num_losses = 0
        self._num_output_at_loss = len(self.output)
        self._num_losses += 1
        return self._num_losses < MAX_LOSSES and not self.is_ending

    def begin_wait(self, now: float) -> float:
        """Notes that it waits for a scheduler; returns for how long it did since the last token."""
        if len(self.output) > self._num_output_at_wait:
            self._waited_seconds = 0.0
        self._num_output_at_wait = len(self.output)
        self._waits_since = now
        return self._waited_seconds

    def end_wait(self, now: float) -> None:
        """Notes that it waits no more."""
        self._waited_seconds += now - self._waits_since

    def _new_logprobs(self, logprobs: StepLogprobs) -> StepLogprobs | None:
        """Returns those of a step without what an earlier run said of the prompt."""
        first = logprobs.first_prompt_position
        # The first token of the prompt has none: the token at position 1 is the first with one.
        num_again = max(self.num_prompt_logprobs + 1 - first, 0)
        prompt = logprobs.prompt[num_again:]
        if not prompt and not logprobs.tokens:
            return None
        self.num_prompt_logprobs += len(prompt)
        return replace(logprobs, first_prompt_position=first + num_again, prompt=prompt)


class WaitingRoom:
    """Holds requests in the order in which they came, each for a bounded time."""

    def __init__(self, seconds: float, on_late: Callable[[TrackedRequest], None]) -> None:
        """Begins empty.

        Args:
            seconds: How long a request may wait between two of its tokens, however often.
            on_late: Takes a request that has waited for so long.
        """
        self._seconds, self._on_late = seconds, on_late
        self._timers: dict[TrackedRequest, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def requests(self) -> list[TrackedRequest]:
        """The requests, in order."""
        return list(self._timers)

    def enter(self, request: TrackedRequest) -> None:
        """Takes a request."""
        loop = asyncio.get_running_loop()
        left = self._seconds - request.begin_wait(loop.time())
        self._timers[request] = loop.call_later(max(left, 0), self._give_up, request)

    def leave(self, request: TrackedRequest) -> bool:
        """Lets a request go; returns False if it is not here."""
        timer = self._timers.pop(request, None)
        if timer is None:
            return False
        timer.cancel()
        request.end_wait(asyncio.get_running_loop().time())
        return True

    def _give_up(self, request: TrackedRequest) -> None:
        self.leave(request)
        self._on_late(request)
