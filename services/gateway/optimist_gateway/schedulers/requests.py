"""Requests at schedulers: their outputs as they arrive, and what lets them go on elsewhere."""

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_gateway.core.answer.output import Finished, FinishReason, StepLogprobs, StepOutput
from optimist_gateway.core.error import ApiError
from optimist_gateway.core.schedulers import prefix_key
from optimist_gateway.structure.json_schema import allow_white_space

logger = logging.getLogger(__name__)

# Outputs of one request that may wait for a slow reader.
MAX_WAITING_OUTPUTS = 256
# How long an answer that is complete may wait for its account.
ACCOUNT_SECONDS = 1.0
UNREACHED = "no scheduler of this model is reached; try again later"


class SchedulerUnavailableError(ApiError):
    """The scheduler is not reached, or went away with the answer.

    Clients read the reason: which scheduler it is, and where, is in the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(503, reason, code="scheduler_unavailable")


Take = Callable[[StepOutput | Exception], None]
"""Takes an output in the moment in which it arrives, or why no more come; raises nothing.

No output follows the one with `finished`. The error is a SchedulerUnavailableError if the stream to
the scheduler broke, another ApiError if too many outputs waited.
"""


MAX_LOSSES = 5
"""Schedulers that may be lost one after the other without a token in between: what ends each of
them is not tried on more."""


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """A request at a scheduler or on its way to another; let somebody `read` it, then `close`.

    A reader is called and not woken: a task that wakes up for each request and step would take
    longer than all that is done there.
    """

    add: scheduler_pb2.Add
    """The command, whose handle, name and output are set by `next_add`."""
    _abort: Callable[..., None]
    """Ends the request that it gets at its scheduler; with `wants_finished` the reader still gets
    its end."""
    name: str = field(init=False)
    prefix: bytes | None = field(init=False)
    output: "array[int]" = field(init=False, default_factory=partial(array, "i"))
    """The output so far."""
    num_prompt_logprobs: int = field(init=False, default=0)
    """Tokens of the prompt, after the first, whose log-probabilities came."""
    num_runs: int = field(init=False, default=0)
    """How often it was sent to a scheduler."""
    is_ending: bool = field(init=False, default=False)
    """Whether it was ended here and waits for its account alone."""
    was_lost: bool = field(init=False, default=False)
    """Whether it lost its scheduler, so that it must not end for want of room."""
    refused_by: dict[str, float | None] = field(init=False, default_factory=dict)
    """Schedulers that had no room for it."""
    waited_seconds: float = field(init=False, default=0.0)
    """How long it has waited for a scheduler since its last token, see `forget_troubles`."""
    _engine: str = field(init=False, default="")
    """What ran the model where it was sent last."""
    _num_losses: int = field(init=False, default=0)
    _num_output_at_begin: int = field(init=False, default=0)
    _num_output_at_trouble: int = field(init=False, default=0)
    _waiting: deque[StepOutput | Exception] = field(init=False, default_factory=deque)
    _reader: Take | None = field(init=False, default=None)
    _is_flowing: bool = field(init=False, default=False)
    """Whether what arrives goes to the reader at once."""
    _account: asyncio.Future[Finished | None] | None = field(init=False, default=None)
    """Set once nothing but the account is wanted."""
    _context: Context = field(init=False, default_factory=copy_context)
    _has_ended: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.name = self.add.request_id
        self.prefix = prefix_key(self.add.cache_salt, self.add.prompt_token_ids)

    @property
    def length(self) -> int:
        """Tokens that prompt and output may have together."""
        return len(self.add.prompt_token_ids) // 4 + self.add.max_tokens

    def read(self, reader: Take) -> None:
        """Calls a reader with outputs from now on, with those first that wait."""
        self._reader = reader
        self.resume()

    def pause(self) -> None:
        """Lets outputs wait, but not an account."""
        self._is_flowing = self._account is not None

    def resume(self) -> None:
        """Hands over what waits, and then what arrives."""
        self._is_flowing = self._reader is not None
        while self._waiting and self._is_flowing and self._reader is not None:
            self._reader(self._waiting.popleft())

    def close(self) -> None:
        """Ends the request at the scheduler if it still runs; the reader gets nothing more."""
        self._reader = None
        self._is_flowing = False
        self._waiting.clear()
        if not self._has_ended:
            self._abort(self)
            self._has_ended = True
            if self._account is not None and not self._account.done():
                self._account.set_result(None)

    def finish(self) -> asyncio.Future[Finished | None]:
        """Ends the request; only its account is read from now on.

        Returns the account; None if it does not come within a second.
        """
        loop = asyncio.get_running_loop()
        account = self._account = loop.create_future()
        self._reader = self._settle
        if not self._has_ended:
            self._abort(self, wants_finished=True)
            timer = loop.call_later(ACCOUNT_SECONDS, self._settle, TimeoutError())
            account.add_done_callback(lambda _: timer.cancel())
        self.resume()
        if self._has_ended and not account.done():
            account.set_result(None)
        return account

    def next_add(self, handle: int, engine: str) -> scheduler_pb2.Add:
        """Returns the command that lets the request begin, or go on after its output.

        The handle names it in the stream; the engine is what runs the model there, see
        `ModelDescription.engine`.
        """
        self.num_runs += 1
        if self.output and engine != self._engine and self.add.sampling.grammar:
            # Not every engine bounds white space: what it has written must still follow.
            self.add.sampling.grammar = allow_white_space(self.add.sampling.grammar)
        self._engine = engine
        self._num_output_at_begin = len(self.output)
        self.add.handle = handle
        if self.num_runs > 1:
            # Schedulers that share proposers have names in common.
            self.add.request_id = f"{self.name}~{self.num_runs}"
            self.add.output_token_ids = to_bytes(self.output)
        return self.add

    def deliver(self, output: StepOutput) -> None:
        """Takes note of an output and adds it for the reader, without what came of the prompt."""
        self.output.extend(output.token_ids)
        if output.logprobs is not None and output.logprobs.prompt:
            output = replace(output, logprobs=self._new_logprobs(output.logprobs))
            if output.logprobs is None and not output.token_ids and output.finished is None:
                return
        if output.finished is not None:
            output = replace(output, finished=self._end_of(output.finished))
            self._has_ended = True
        elif len(self._waiting) >= MAX_WAITING_OUTPUTS:
            self._abort(self)
            self.fail(ApiError(500, "the answer was read too slowly", code="slow_reader"))
            return
        self._put(output)

    def fail(self, error: Exception) -> None:
        """Ends the request with an error."""
        if not self._has_ended:
            self._has_ended = True
            self._put(error)

    def _put(self, item: StepOutput | Exception) -> None:
        if self._is_flowing and self._reader is not None:
            self._reader(item)
        else:
            self._waiting.append(item)

    def _settle(self, item: StepOutput | Exception) -> None:
        """Looks for the account in what arrives."""
        if self._account is None or self._account.done():
            return
        if isinstance(item, StepOutput):
            if item.finished is not None:
                self._account.set_result(item.finished)
            return
        self._context.run(logger.warning, "an answer goes out without its account: %r", item)
        self._account.set_result(None)

    def _end_of(self, finished: Finished) -> Finished:
        """Returns the end of the whole request, of which a scheduler knows its own part."""
        if finished.reason is FinishReason.OVERLOADED:
            # Where there is room the soonest; others may have said that before.
            known = [seconds for seconds in self.refused_by.values() if seconds is not None]
            finished = replace(finished, retry_seconds=min(known, default=None))
        return replace(finished, is_whole=False) if self._num_output_at_begin else finished

    def may_go_on(self) -> bool:
        """Notes that its scheduler was lost; returns whether it may be tried at another one."""
        self.forget_troubles()
        self._num_losses += 1
        return self._num_losses < MAX_LOSSES and not self.is_ending

    def forget_troubles(self) -> None:
        """Begins to count losses and waits anew if there was a token since the last of them."""
        if len(self.output) > self._num_output_at_trouble:
            self._num_losses, self.waited_seconds = 0, 0.0
            self._num_output_at_trouble = len(self.output)

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

    def __init__(self, seconds: float, on_late: Callable[[ScheduledRequest], None]) -> None:
        """Begins empty; `on_late` gets what waits for so long in all between two of its tokens."""
        self._seconds, self._on_late = seconds, on_late
        self._timers: dict[ScheduledRequest, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def requests(self) -> list[ScheduledRequest]:
        """The requests, in order."""
        return list(self._timers)

    def enter(self, request: ScheduledRequest) -> None:
        """Takes a request."""
        loop = asyncio.get_running_loop()
        request.forget_troubles()
        left = max(self._seconds - request.waited_seconds, 0)
        self._timers[request] = loop.call_later(left, self._give_up, request)

    def leave(self, request: ScheduledRequest) -> bool:
        """Lets a request go; returns False if it is not here."""
        timer = self._timers.pop(request, None)
        if timer is None:
            return False
        timer.cancel()
        left = timer.when() - asyncio.get_running_loop().time()
        request.waited_seconds = self._seconds - max(left, 0)
        return True

    def _give_up(self, request: ScheduledRequest) -> None:
        self.leave(request)
        self._on_late(request)
