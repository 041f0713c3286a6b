"""The stream of plans to the worker and of results back, opened again whenever it breaks."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.network.channel import open_channel
from optimist_common.network.endpoints import Peer
from optimist_common.network.mailbox import Mailbox
from optimist_common.network.server import LIVENESS
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import WorkerDescription, describe_worker
from optimist_scheduler.workers.translate import step_result

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
DESCRIBE_TIMEOUT_SECONDS = 5.0
MAX_WAITING_RESULTS = 64
"""Results that were read and not received; while as many wait, the stream is not read."""

CheckWorker = Callable[[WorkerDescription], None]


class WorkerLostError(Exception):
    """The worker's stream broke, or carried what is not in the contract; the text says how."""


class WorkerLink:
    """One Execute stream to one worker.

    Plans are sent and results received independently: neither waits for the other.
    """

    def __init__(
        self, settings: SchedulerSettings, peer: Peer, on_news: Callable[[], None]
    ) -> None:
        """Sets up a link that is not connected until `connect` is.

        `on_news` is called when `receive` has something to return or to raise.
        """
        self._settings, self._peer, self._on_news = settings, peer, on_news
        self._tls = settings.tls()
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._begin()

    async def connect(self, check: CheckWorker) -> WorkerDescription:
        """Opens the stream, trying until the worker is reached; returns what it holds.

        `check` raises ValueError for a worker that cannot be used; it is tried again.
        """
        pause, logged = FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                return await self._open(check)
            except (grpc.aio.AioRpcError, ValueError) as error:
                await self.close()
                reason = error.code().name if isinstance(error, grpc.RpcError) else str(error)
                if reason != logged:
                    target = self._peer.target
                    logger.info("the worker at %s is not reached: %s", target, reason)
                    logged = reason
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def send(self, plan: worker_pb2.ExecuteRequest, trace_parents: Mapping[str, str]) -> None:
        """Sends a plan at the next turn of the event loop; a broken stream shows in `receive`."""
        if trace_parents:
            for admission in plan.admissions:
                admission.trace_parent = trace_parents.get(admission.request_id, "")
        self._plans.put(plan)

    def receive(self) -> tuple[StepResult, worker_pb2.ExecuteResponse] | None:
        """Returns the next result and its message, if there is one; raises WorkerLostError."""
        if not self._results.empty():
            return self._results.get_nowait()
        if self._fault:
            raise WorkerLostError(self._fault)
        return None

    def fail(self, reason: str) -> None:
        """Takes the stream for broken, once the results that came are received."""
        self._fault = reason
        self._on_news()

    @property
    def num_results(self) -> int:
        """Results that wait to be received."""
        return self._results.qsize()

    async def close(self) -> None:
        """Ends the stream; `connect` opens another."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._plans.close()
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            await self._channel.close()
        self._channel = self._call = self._reader = None

    def _begin(self) -> None:
        # No more plans wait than may be in flight.
        self._plans: Mailbox[worker_pb2.ExecuteRequest] = Mailbox()
        self._results: asyncio.Queue[tuple[StepResult, worker_pb2.ExecuteResponse]] = asyncio.Queue(
            MAX_WAITING_RESULTS
        )
        self._fault = ""

    async def _open(self, check: CheckWorker) -> WorkerDescription:
        await self.close()
        self._begin()
        self._channel = open_channel(
            self._peer.target, self._tls, server_name=self._peer.server_name
        )
        stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        message = await stub.Describe(
            worker_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_SECONDS
        )
        await _require_alive(self._channel)
        description = describe_worker(message, self._settings)
        check(description)
        self._call = stub.Execute(self._plans.items())
        self._reader = asyncio.create_task(self._read(self._call))
        logger.info("connected to the worker at %s: %s", self._peer.target, description.model)
        return description

    async def _read(self, call: Any) -> None:
        """Reads results, whether they are waited for or not, until the stream breaks."""
        try:
            async for message in call:
                await self._results.put((step_result(message), message))
                self._on_news()
            self._fault = "the worker ended the stream"
        except grpc.aio.AioRpcError as error:
            self._fault = f"{error.code().name}: {error.details()}"
        except ValueError as error:
            self._fault = f"a column that is none: {error}"
        except Exception as error:
            logger.exception("a result cannot be read")
            self._fault = f"a result cannot be read: {error!r}"
        except asyncio.CancelledError:
            # The call was ended because a plan could not be sent, unless this task is being ended.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._fault = "the stream was cancelled"
        self._on_news()


async def _require_alive(channel: grpc.aio.Channel) -> None:
    """Raises ValueError if a worker says that it is stuck; one that does not say is not."""
    request = health_pb2.HealthCheckRequest(service=LIVENESS)
    try:
        response = await health_pb2_grpc.HealthStub(channel).Check(
            request, timeout=DESCRIBE_TIMEOUT_SECONDS
        )
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
            return
        raise
    if response.status == health_pb2.HealthCheckResponse.NOT_SERVING:
        raise ValueError("it says that a step of it does not end")
