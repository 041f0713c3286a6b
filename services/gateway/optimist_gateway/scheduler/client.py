"""The gateway's one stream to its scheduler, shared by all requests."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.channel import open_channel
from optimist_common.columns import from_bytes
from optimist_common.tls import Tls
from optimist_gateway.scheduler.output_message import read_outputs
from optimist_gateway.scheduler.request_stream import RequestStream, SchedulerUnavailableError
from optimist_gateway.scheduler.stats import SchedulerStats, read_stats

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_SECONDS = 5.0
RECONNECT_SECONDS = 0.25
_MAX_HANDLE = 2**31 - 1


@dataclass(frozen=True)
class ModelDescription:
    """What the scheduler says about the model."""

    vocab_size: int
    max_model_len: int
    """Longest sequence that can run, prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...]
    is_synthetic: bool
    """Whether the worker accepts drafts by chance: the text is meaningless, for benchmarks only."""


class SchedulerClient:
    """Keeps one Connect stream open, again and again, and hands outputs to their requests."""

    def __init__(self, address: str, max_num_requests: int, tls: Tls | None = None) -> None:
        """Sets up a client that is not connected until `run` is.

        Args:
            address: The scheduler's host:port.
            max_num_requests: How many requests run at most; bounds the commands that wait.
            tls: How the stream is protected; None for plaintext.
        """
        self._address, self._tls = address, tls
        self._max_waiting_commands = 4 * max_num_requests
        self._commands: asyncio.Queue[scheduler_pb2.ConnectRequest] | None = None
        self._call: grpc.aio.Call | None = None
        self._requests: dict[int, RequestStream] = {}
        self._next_handle = 1
        self._description: ModelDescription | None = None
        self._reason = f"the scheduler at {address} has not been reached yet"
        self.stats: SchedulerStats | None = None
        """The scheduler's figures as it told them last; None while it is not connected."""

    @property
    def description(self) -> ModelDescription:
        """The model; raises SchedulerUnavailableError if the scheduler is not connected."""
        if self._description is None:
            raise SchedulerUnavailableError(self._reason)
        return self._description

    def add(self, add: scheduler_pb2.Add) -> RequestStream:
        """Sends a request; its handle is set here.

        Raises:
            SchedulerUnavailableError: There is no connection, or it takes no more commands.
        """
        if self._commands is None:
            raise SchedulerUnavailableError(self._reason)
        if self._commands.full():
            raise SchedulerUnavailableError("the scheduler does not take commands fast enough")
        add.handle = self._next_handle
        self._next_handle = self._next_handle % _MAX_HANDLE + 1
        self._commands.put_nowait(scheduler_pb2.ConnectRequest(add=add))
        request = RequestStream(partial(self.abort, add.handle))
        self._requests[add.handle] = request
        return request

    def abort(self, handle: int, *, wants_finished: bool = False) -> None:
        """Tells the scheduler to end a request; does nothing if it has ended.

        With `wants_finished` the request's reader still gets its end.
        """
        if handle not in self._requests or self._commands is None:
            return
        if not wants_finished:
            del self._requests[handle]
        abort = scheduler_pb2.Abort(handle=handle, wants_finished=wants_finished)
        try:
            self._commands.put_nowait(scheduler_pb2.ConnectRequest(abort=abort))
        except asyncio.QueueFull:
            # A scheduler that takes no commands is lost; it ends the requests with the stream.
            if self._call is not None:
                self._call.cancel()

    def ask_stats(self) -> None:
        """Asks for the scheduler's figures, if it is connected and takes commands."""
        if self._commands is not None and not self._commands.full():
            get_stats = scheduler_pb2.GetStats()
            self._commands.put_nowait(scheduler_pb2.ConnectRequest(get_stats=get_stats))

    def break_off(self, error: Exception) -> None:
        """Ends all requests with an error, which their readers get behind what has arrived."""
        for handle, request in list(self._requests.items()):
            self.abort(handle)
            request.fail(error)

    async def run(self) -> None:
        """Connects, reads until the stream breaks, and connects again; returns never."""
        async with open_channel(self._address, self._tls) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            while True:
                try:
                    await self._run_once(stub)
                    reason = "the scheduler closed the stream"
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                except (ValueError, KeyError) as error:
                    logger.exception("the scheduler sent what is not in the contract")
                    reason = f"not understood: {error}"
                self._disconnect(reason)
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _run_once(self, stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub") -> None:
        response = await stub.Describe(
            scheduler_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_SECONDS
        )
        commands: asyncio.Queue[scheduler_pb2.ConnectRequest] = asyncio.Queue(
            self._max_waiting_commands
        )
        call = stub.Connect(_until_cancelled(commands))
        self._commands, self._call = commands, call
        self._description = _description(response)
        logger.info("connected to the scheduler at %s", self._address)
        try:
            async for outputs in call:
                self._dispatch(outputs)
        except asyncio.CancelledError:
            # The call was ended because it took no commands, unless this task is being ended.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        finally:
            call.cancel()

    def _disconnect(self, reason: str) -> None:
        if self._description is not None:
            logger.warning("lost the scheduler at %s: %s", self._address, reason)
        self._reason = f"the scheduler at {self._address} is not reached ({reason})"
        self._description = self._commands = self._call = self.stats = None
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.fail(
                SchedulerUnavailableError("the scheduler went away while it worked on this")
            )

    def _dispatch(self, response: scheduler_pb2.ConnectResponse) -> None:
        for reply in response.replies:
            if reply.HasField("stats"):
                self.stats = read_stats(reply.stats)
        for handle, output in read_outputs(response).items():
            request = self._requests.get(handle)
            if request is None:
                continue
            if output.finished is not None:
                del self._requests[handle]
            request.deliver(output)


async def _until_cancelled(
    commands: asyncio.Queue[scheduler_pb2.ConnectRequest],
) -> AsyncIterator[scheduler_pb2.ConnectRequest]:
    while True:
        yield await commands.get()


def _description(response: scheduler_pb2.DescribeResponse) -> ModelDescription:
    lengths = [response.max_model_len, response.kv_capacity_tokens]
    return ModelDescription(
        vocab_size=response.vocab_size,
        max_model_len=min(length for length in lengths if length > 0),
        eos_token_ids=tuple(from_bytes(response.eos_token_ids).tolist()),
        is_synthetic=response.is_synthetic,
    )
