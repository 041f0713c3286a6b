"""The requests of all gateways in vLLM: carries out their commands, and sends what passes bring."""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.observing.metrics import DraftMetrics
from optimist_common.scheduler_service.fields import MalformedError, read_pause_mode
from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_common.scheduler_service.pauses import Pauses
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_vllm.engine.figures import Figures
from optimist_vllm.engine.outputs import write_outputs
from optimist_vllm.engine.request import NewRequest, Running, read_request

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Description:
    """The model, and what vLLM takes."""

    engine: str
    """Name and version."""
    model: str
    vocab_size: int
    max_model_len: int
    kv_capacity_tokens: int
    num_blocks: int
    """Of one of the engines."""
    eos_token_ids: Sequence[int]
    num_engines: int
    """Data parallel ranks."""
    has_priorities: bool
    """Whether the scheduling policy is `priority`."""
    max_draft_tokens: int
    """0 without speculation."""
    draft_source: DraftSource
    """Where drafts come from."""

    @property
    def unsupported_fields(self) -> list[str]:
        """Fields of requests that vLLM refuses: some samplers do not go with drafts."""
        return ["sampling.min_p", "sampling.logit_bias_token_ids"] if self.max_draft_tokens else []


UNSUPPORTED_AFTER_OUTPUT = ["sampling.presence_penalty", "sampling.frequency_penalty"]
"""vLLM takes what an earlier run delivered for a part of the prompt, which these do not count."""


class Llm(Protocol):
    """vLLM, as far as it is needed here."""

    description: Description

    def make(self, request: NewRequest) -> Any:
        """Returns vLLM's form of a request; raises ValueError, its message for the client."""
        ...

    async def add(self, request: Any) -> None:
        """Sends such a request."""
        ...

    async def abort(self, request_ids: list[str]) -> None:
        """Ends requests; those that have ended are ignored."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Pauses; returns once nothing runs any more."""
        ...

    async def resume(self) -> None:
        """Goes on."""
        ...


class Engine:
    """What `SchedulerServicer` needs, over vLLM."""

    def __init__(self, llm: Llm, max_num_requests: int, drafts: DraftMetrics | None = None) -> None:
        """Sets up.

        Args:
            llm: vLLM.
            max_num_requests: How many requests may run or wait at once.
            drafts: Where drafts are counted, if at all.
        """
        self._llm, self._max_num_requests, self._drafts = llm, max_num_requests, drafts
        self._description = llm.description
        self._streams: dict[int, GatewayStream] = {}
        self._owners = itertools.count(1)
        self._requests: dict[str, Running] = {}
        self._sends: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        """What vLLM is sent, in order; bounded by what is asked for."""
        self._figures = Figures(self._description.num_blocks)
        self._pauses = Pauses(self, self._answer_pause)
        self._pausing: asyncio.Task[None] | None = None
        self._is_paused = self.is_quiet = False
        self._last_pass = time.monotonic()

    def describe(self) -> scheduler_pb2.DescribeResponse:
        """Describes the model, what vLLM takes, and the load."""
        model, stats = self._description, self._stats()
        policy = "PRIORITY" if model.has_priorities else "FCFS"
        return scheduler_pb2.DescribeResponse(
            model=model.model,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            kv_capacity_tokens=model.kv_capacity_tokens,
            eos_token_ids=to_bytes(model.eos_token_ids),
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_workers=model.num_engines,
            policy=scheduler_pb2.SchedulingPolicy.Value(f"SCHEDULING_POLICY_{policy}"),
            max_draft_tokens=model.max_draft_tokens,
            engine=model.engine,
            unsupported_fields=model.unsupported_fields,
            unsupported_after_output=UNSUPPORTED_AFTER_OUTPUT,
        )

    def open(self) -> GatewayStream:
        """Returns a stream with a number of its own."""
        stream = GatewayStream(next(self._owners))
        self._streams[stream.owner] = stream
        return stream

    def carry_out(self, stream: GatewayStream, command: scheduler_pb2.ConnectRequest) -> None:
        """Carries out one command of a stream and answers it; a pause is answered later."""
        try:
            reply = self._dispatch(stream, command)
        except MalformedError as error:
            reply = scheduler_pb2.Reply(error=str(error))
        if reply is not None:
            reply.command_id = command.command_id
            self._send(stream, scheduler_pb2.ConnectResponse(replies=[reply]))

    def close(self, stream: GatewayStream) -> None:
        """Aborts all requests of a stream and takes its pending pauses back."""
        self._streams.pop(stream.owner, None)
        request_ids = list(stream.request_ids.values())
        for request_id in request_ids:
            del self._requests[request_id]
        stream.request_ids.clear()
        if request_ids:
            self._sends.put_nowait(partial(self._llm.abort, request_ids))
        self._pauses.withdraw(stream)

    async def run(self) -> None:
        """Sends to vLLM; returns never, raises what sending raises."""
        while True:
            send = await self._sends.get()
            await send()

    def take_outputs(self, outputs: Iterable[Any]) -> None:
        """Sends what a pass brought to the gateways."""
        self._last_pass = time.monotonic()
        source = self._description.draft_source
        written = write_outputs(outputs, self._requests, source)
        if written.drafted and self._drafts is not None:
            columns = np.array(written.drafted, np.int32).T
            self._drafts.observe(np.full(len(written.drafted), source, np.int32), *columns)
        self._figures.num_preemptions += written.num_preemptions
        for request_id in written.ended:
            request = self._requests.pop(request_id)
            request.stream.remove(request.handle)
        for stream, message in written.messages.items():
            self._send(stream, message)

    def take_stats(self, engine_index: int, stats: Any) -> None:
        """Takes vLLM's figures of a pass; None if it has none."""
        self._last_pass = time.monotonic()
        if stats is not None:
            self._figures.take(engine_index, stats)

    def seconds_at_work(self) -> float:
        """Returns for how long no pass has ended though there are requests."""
        if not self._requests or self._is_paused:
            self._last_pass = time.monotonic()
        return time.monotonic() - self._last_pass

    def pause(self, mode: PauseMode) -> None:
        """Begins to pause."""
        self._is_paused, self.is_quiet = True, False
        if self._pausing is not None:
            self._pausing.cancel()
        self._pausing = asyncio.create_task(self._pause(mode))

    def resume(self) -> None:
        """Goes on after a pause; without one it does nothing."""
        if self._pausing is not None:
            self._pausing.cancel()
        if self._is_paused:
            self._is_paused = self.is_quiet = False
            self._sends.put_nowait(self._llm.resume)

    async def _pause(self, mode: PauseMode) -> None:
        sent = asyncio.Event()

        async def note() -> None:
            sent.set()

        # Requests that came before are sent before.
        self._sends.put_nowait(note)
        await sent.wait()
        await self._llm.pause(mode)
        self.is_quiet = True
        self._pauses.answer()

    def _dispatch(
        self, stream: GatewayStream, command: scheduler_pb2.ConnectRequest
    ) -> scheduler_pb2.Reply | None:
        kind = command.WhichOneof("command")
        if kind == "add":
            return self._add(stream, command.add)
        if kind == "abort":
            return self._abort(stream, command.abort)
        if kind == "pause":
            mode = read_pause_mode(command.pause)
            self._pauses.add(stream, command.command_id, mode)
            self.pause(mode)
            return None
        if kind == "resume":
            self._pauses.resume()
            return scheduler_pb2.Reply()
        if kind == "set_priority":
            raise MalformedError(
                f"set_priority: is not supported by {self._description.engine}, where a request "
                "keeps the priority that it came with"
            )
        if kind == "get_stats":
            return scheduler_pb2.Reply(stats=self._stats())
        raise MalformedError("command: is not set")

    def _add(self, stream: GatewayStream, add: scheduler_pb2.Add) -> scheduler_pb2.Reply:
        """Adds a request; one that cannot be added gets its end at once."""
        if add.handle in stream.request_ids:
            raise MalformedError(f"add.handle: {add.handle} is in use")
        reason, model = scheduler_pb2.FINISH_REASON_REFUSED, self._description
        running = Running(
            stream,
            add.handle,
            add.wants_prediction_positions,
            add.sampling.num_logprobs if add.sampling.HasField("num_logprobs") else None,
            add.sampling.num_prompt_logprobs if not add.output_token_ids else None,
        )
        try:
            new = read_request(
                add, vocab_size=model.vocab_size, has_priorities=model.has_priorities
            )
            if new.request_id in self._requests:
                raise MalformedError(f"request_id: {new.request_id} is in use")
            self._require_supported(new)
            if len(self._requests) >= self._max_num_requests:
                reason = scheduler_pb2.FINISH_REASON_OVERLOADED
                raise MalformedError(f"{len(self._requests)} requests run or wait; try again later")
            request = self._llm.make(new)
        except ValueError as error:
            finished = running.end(reason, str(error))
            self._send(stream, scheduler_pb2.ConnectResponse(finished=[finished]))
            return scheduler_pb2.Reply(error=finished.message)
        if not self._requests:
            self._last_pass = time.monotonic()
        stream.request_ids[add.handle] = new.request_id
        self._requests[new.request_id] = running
        self._sends.put_nowait(partial(self._llm.add, request))
        return scheduler_pb2.Reply()

    def _require_supported(self, new: NewRequest) -> None:
        sampling, engine = new.sampling, self._description.engine
        names = self._description.unsupported_fields
        if names and sampling.min_p:
            raise MalformedError(f"sampling.min_p: is not supported by {engine} with drafts")
        if names and sampling.logit_bias:
            raise MalformedError(f"sampling.logit_bias: is not supported by {engine} with drafts")
        if new.payload.num_delivered and (sampling.presence_penalty or sampling.frequency_penalty):
            raise MalformedError(
                f"output_token_ids: a request with sampling.presence_penalty or "
                f"sampling.frequency_penalty cannot go on at {engine}"
            )

    def _abort(self, stream: GatewayStream, abort: scheduler_pb2.Abort) -> scheduler_pb2.Reply:
        request_id = stream.request_ids.get(abort.handle)
        if request_id is not None:
            request = self._requests.pop(request_id)
            stream.remove(abort.handle)
            self._sends.put_nowait(partial(self._llm.abort, [request_id]))
            if abort.wants_finished:
                finished = request.end(scheduler_pb2.FINISH_REASON_ABORTED)
                self._send(stream, scheduler_pb2.ConnectResponse(finished=[finished]))
        return scheduler_pb2.Reply()

    def _stats(self) -> scheduler_pb2.Stats:
        return self._figures.message(
            len(self._requests), self._description.num_engines, is_paused=self._is_paused
        )

    def _answer_pause(self, stream: GatewayStream, command_id: int, error: str) -> None:
        reply = scheduler_pb2.Reply(command_id=command_id, error=error)
        self._send(stream, scheduler_pb2.ConnectResponse(replies=[reply]))

    def _send(self, stream: GatewayStream, response: scheduler_pb2.ConnectResponse) -> None:
        """Sends a response to a stream, which is given up if too many wait already."""
        if stream.owner in self._streams and not stream.send(response):
            self.close(stream)
