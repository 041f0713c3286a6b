"""The gateway's one stream to one scheduler, shared by all requests there."""

import asyncio
import logging
import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.network.channel import Tls, open_channel
from optimist_common.network.endpoints import Peer
from optimist_common.network.mailbox import Mailbox
from optimist_common.network.server import STEPS
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.schedulers.messages import find_used, read_description, read_outputs
from optimist_gateway.schedulers.requests import (
    UNREACHED,
    ScheduledRequest,
    SchedulerUnavailableError,
)

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_SECONDS = 5.0
RECONNECT_SECONDS = 0.25
UNFIT_SECONDS = 5.0
DOUBT_SECONDS = 5.0
"""How long a scheduler that was lost comes last, once it is back."""
HEALTH_SECONDS = 1.0
# What hangs says so twice, with two names, one right after the other.
_SETTLE_SECONDS = 0.1
_MAX_HANDLE = 2**31 - 1


class UnfitSchedulerError(Exception):
    """A scheduler cannot be used beside the others; the text is why."""


class SchedulerClient:
    """Keeps one Connect stream open, again and again, and hands outputs to their requests."""

    def __init__(
        self,
        peer: Peer,
        max_num_requests: int,
        tls: Tls | None,
        *,
        find_fault: "Callable[[SchedulerClient, ModelDescription], str | None]",
        on_change: Callable[[], None],
        on_lost: Callable[[list[ScheduledRequest]], None],
        on_refused: Callable[[ScheduledRequest], bool],
    ) -> None:
        """Sets up a client that is not connected until `run` is.

        Args:
            peer: The scheduler.
            max_num_requests: How many requests run at most; bounds the commands that wait.
            tls: Of the connection.
            find_fault: Returns why the scheduler cannot be used; None if it can.
            on_change: Called when requests may be better off elsewhere than before.
            on_lost: Takes the requests of a scheduler that was lost.
            on_refused: Takes a request that it has no room for; returns False if that ends it.
        """
        self.peer = peer
        self._tls = tls
        self._find_fault, self._on_change = find_fault, on_change
        self._on_lost, self._on_refused = on_lost, on_refused
        self._max_waiting_commands = 4 * max_num_requests
        self._commands: Mailbox[scheduler_pb2.ConnectRequest] | None = None
        self._call: grpc.aio.Call | None = None
        self._requests: dict[int, ScheduledRequest] = {}
        self._next_handle = 1
        self._num_others = 0
        self.health = PeerHealth(peer.target, on_change)
        self.description: ModelDescription | None = None
        """The model; None while the scheduler is not connected."""
        self._was_connected = False
        self._reason = ""
        """Why it is not connected, for the log alone; empty until it was tried."""
        self.stats: scheduler_pb2.Stats | None = None
        """The scheduler's last figures; None while it is not connected."""
        self.is_retired = False
        """Whether it is to get no more requests, because its name is that of others now."""
        self._is_idle = False
        """Whether it had workers and has none any more."""
        self._loop = asyncio.get_running_loop()
        self._doubtful_until = 0.0

    @property
    def capacity(self) -> int:
        """Blocks of KV memory there; 0 if unknown."""
        return self.stats.num_blocks if self.stats is not None else 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is known that speaks against it."""
        if self.health.is_hung or self.health.is_draining or self.is_retired or self._is_idle:
            return False
        return self._loop.time() >= self._doubtful_until

    @property
    def is_to_be_left(self) -> bool:
        """Whether its requests are better off anywhere else: it ends, or has lost its workers.

        Those of an engine that hangs stay: they may be what it hangs on.
        """
        return (self.health.is_draining and not self.health.is_hung) or self._is_idle

    @property
    def requests(self) -> list[ScheduledRequest]:
        """The requests there that have not ended."""
        return list(self._requests.values())

    @property
    def load(self) -> int:
        """Requests there, of other gateways as many as there were last."""
        return len(self._requests) + self._num_others

    @property
    def _is_full(self) -> bool:
        """Whether it takes no more commands."""
        return self._commands is None or len(self._commands) >= self._max_waiting_commands

    def takes(self, request: ScheduledRequest) -> bool:
        """Returns whether it is connected, reads commands, and supports what the request has."""
        model = self.description
        if self._is_full or model is None or request.length > model.max_model_len:
            return False
        unsupported = model.unsupported_fields
        if request.output:
            unsupported |= model.unsupported_after_output
        return not (unsupported and find_used(request.add, unsupported))

    def start(self, request: ScheduledRequest) -> None:
        """Sends a request that it takes."""
        if self._commands is None or self.description is None:
            raise SchedulerUnavailableError(UNREACHED)
        handle = self._next_handle
        self._next_handle = handle % _MAX_HANDLE + 1
        self._requests[handle] = request
        self._commands.put(
            scheduler_pb2.ConnectRequest(add=request.next_add(handle, self.description.engine))
        )

    def abort(self, request: ScheduledRequest, *, wants_finished: bool = False) -> bool:
        """Asks the scheduler to end a request; returns False if it is not there.

        With `wants_finished` the request's reader still gets its end.
        """
        handle = request.add.handle
        if self._requests.get(handle) is not request or self._commands is None:
            return False
        if not wants_finished:
            del self._requests[handle]
        abort = scheduler_pb2.Abort(handle=handle, wants_finished=wants_finished)
        if not self._is_full:
            self._commands.put(scheduler_pb2.ConnectRequest(abort=abort))
        elif self._call is not None:
            # A scheduler that takes no commands is lost; it ends the requests with the stream.
            self._call.cancel()
        return True

    def ask_stats(self) -> None:
        """Asks for the scheduler's figures, if it is connected and takes commands."""
        if self._commands is not None and not self._is_full:
            command = scheduler_pb2.ConnectRequest(get_stats=scheduler_pb2.GetStats())
            self._commands.put(command)

    async def run(self) -> None:
        """Connects, reads until the stream breaks, and connects again; returns never."""
        target, name = self.peer.target, self.peer.server_name
        async with (
            open_channel(target, self._tls, server_name=name) as channel,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self.health.run(channel))
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            while True:
                pause = RECONNECT_SECONDS
                try:
                    await self._run_once(stub)
                    reason = "the scheduler closed the stream"
                except UnfitSchedulerError as error:
                    reason, pause = str(error), UNFIT_SECONDS
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                except ValueError as error:
                    logger.exception("%s sent what is not in the contract", target)
                    reason = f"not understood: {error}"
                self._disconnect(reason)
                await asyncio.sleep(pause)

    async def _run_once(self, stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub") -> None:
        response = await stub.Describe(
            scheduler_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_SECONDS
        )
        description = read_description(response)
        if (fault := self._find_fault(self, description)) is not None:
            raise UnfitSchedulerError(fault)
        commands: Mailbox[scheduler_pb2.ConnectRequest] = Mailbox()
        call = stub.Connect(commands.items())
        self._commands, self._call = commands, call
        self.description, self._was_connected = description, True
        logger.info("connected to the scheduler at %s", self.peer.target)
        try:
            self._on_change()
            async for outputs in call:
                self._dispatch(outputs)
        except asyncio.CancelledError:
            # The call was ended because it took no commands, unless this task is being ended.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        finally:
            commands.close()
            call.cancel()

    def _disconnect(self, reason: str) -> None:
        target = self.peer.target
        if self.description is not None:
            logger.warning("lost the scheduler at %s: %s", target, reason)
            self._doubtful_until = self._loop.time() + DOUBT_SECONDS
        elif reason != self._reason:
            # At first it may be that it has only just been started too.
            level = logging.WARNING if self._was_connected else logging.INFO
            logger.log(level, "the scheduler at %s gets no requests: %s", target, reason)
        self._reason = reason
        self.description = self._commands = self._call = self.stats = None
        self._num_others, self._is_idle = 0, False
        lost, self._requests = self.requests, {}
        self._on_lost(lost)

    def _note(self, stats: scheduler_pb2.Stats) -> None:
        before, self.stats = self.stats, stats
        num_here = stats.num_running + stats.num_waiting
        self._num_others = max(num_here - len(self._requests), 0)
        if before is not None and bool(before.num_workers) is not bool(stats.num_workers):
            self._is_idle = not stats.num_workers
            self._on_change()

    def _dispatch(self, response: scheduler_pb2.ConnectResponse) -> None:
        for reply in response.replies:
            if reply.HasField("stats"):
                self._note(reply.stats)
        requests = self._requests
        for change in response.priorities:
            if change.handle in requests:
                # It keeps the priority if it goes on at another scheduler.
                requests[change.handle].add.priority = change.priority
        for handle, output in read_outputs(response, time.perf_counter()):
            if (request := requests.get(handle)) is None:
                continue
            if (finished := output.finished) is not None:
                del requests[handle]
                if finished.reason is FinishReason.OVERLOADED:
                    request.refused_by[self.peer.target] = finished.retry_seconds
                    if self._on_refused(request):
                        continue
            request.deliver(output)


class PeerHealth:
    """Knows a scheduler's last word on itself; one that is not reached is not known to be ill."""

    def __init__(self, target: str, on_change: Callable[[], None]) -> None:
        """Calls `on_change` when `run` finds a change; logs call the scheduler `target`."""
        self._target, self._on_change = target, on_change
        self.is_hung = False
        """Whether a step takes so long that the engine must be taken for stuck."""
        self.is_draining = False
        """Whether it takes no more requests: it ends, or has no worker."""

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Follows the scheduler; returns never."""
        stub = health_pb2_grpc.HealthStub(channel)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(stub, STEPS, self._note_hung))
            tasks.create_task(self._watch(stub, "", self._note_draining))

    async def _watch(
        self, stub: health_pb2_grpc.HealthStub, name: str, note: Callable[[bool], None]
    ) -> None:
        request = health_pb2.HealthCheckRequest(service=name)
        while True:
            try:
                async for response in stub.Watch(request):
                    note(response.status == health_pb2.HealthCheckResponse.NOT_SERVING)
            except grpc.aio.AioRpcError as error:
                logger.debug("the health of %s is not known: %s", self._target, error.code().name)
            note(False)
            await asyncio.sleep(HEALTH_SECONDS)

    def _note_hung(self, is_hung: bool) -> None:
        if is_hung == self.is_hung:
            return
        self.is_hung = is_hung
        if is_hung:
            logger.error("the engine at %s hangs: no step ends", self._target)
        self._on_change()

    def _note_draining(self, is_draining: bool) -> None:
        if is_draining != self.is_draining:
            self.is_draining = is_draining
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._on_change)
