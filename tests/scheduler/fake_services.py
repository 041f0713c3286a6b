"""The fake worker and a fake proposer behind real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist.scheduler.v1 import scheduler_pb2_grpc
from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import floats_to_bytes, from_bytes, to_bytes
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_common.scheduler_service.servicer import SchedulerServicer
from optimist_scheduler.engine.engine import Engine
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.settings import SchedulerSettings
from tests.scheduler.fake_worker import FakeWorker

_Context = grpc.aio.ServicerContext[Any, Any]
_Plans = asyncio.Queue[worker_pb2.ExecuteRequest | None]


class FakeWorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    server: GrpcServer
    """The last one that served it."""
    port = 0

    async def stop(self) -> None:
        """Ends its server."""
        await self.server.end_calls(0)

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker
        self.step_seconds = 0.0
        self.break_at: set[int] = set()
        """Numbers of the steps whose results are lost with the stream."""
        self.crashes: Callable[[FakeWorkerServicer], bool] = lambda _: False
        """Whether a step is lost with the stream, once it has been run."""
        self.spoil_at: set[int] = set()
        """Numbers of the steps whose results are not in the contract."""
        self.spoil: dict[str, Any] = {"token_ids": b"\0\0\0"}
        """What is wrong with them."""
        self.num_streams = 0
        self.num_plans = 0
        """Plans that have arrived and are not answered."""
        self.faults: list[BaseException] = []
        """Rules of the contract that a plan broke."""
        self.may_run = asyncio.Event()
        """Holds plans up while it is not set."""
        self.may_run.set()

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: _Context
    ) -> worker_pb2.DescribeResponse:
        return self.worker.description

    async def Execute(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: _Context
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        self.num_streams += 1
        stream = self.num_streams
        self.worker.restart()
        plans: _Plans = asyncio.Queue()
        self.num_plans = 0
        reader = asyncio.create_task(self._read(request_iterator, plans))
        try:
            while (plan := await plans.get()) is not None:
                await self.may_run.wait()
                if stream != self.num_streams:
                    return
                response = await self._answer(self._run(plan), context)
                # A newer stream takes the worker over at once.
                if stream != self.num_streams:
                    return
                self.num_plans -= 1
                yield response
        finally:
            reader.cancel()

    def _run(self, plan: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        try:
            return self.worker.execute(plan)
        except Exception as error:
            self.faults.append(error)
            raise

    async def _answer(
        self, response: worker_pb2.ExecuteResponse, context: _Context
    ) -> worker_pb2.ExecuteResponse:
        step = self.worker.num_steps
        await asyncio.sleep(self.step_seconds)
        if step in self.break_at or self.crashes(self):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken for the test")
        if step in self.spoil_at:
            response.MergeFrom(worker_pb2.ExecuteResponse(**self.spoil))
        return response

    async def _read(
        self, requests: AsyncIterator[worker_pb2.ExecuteRequest], plans: _Plans
    ) -> None:
        async for plan in requests:
            self.num_plans += 1
            plans.put_nowait(plan)
        plans.put_nowait(None)


class FakeProposerServicer(proposer_pb2_grpc.ProposerServiceServicer):
    """Follows a prediction from its start, until the first token that differs.

    Without a prediction that is the prompt.
    """

    server: GrpcServer
    """The last one that served it."""
    port: int

    async def stop(self) -> None:
        """Ends its server."""
        await self.server.end_calls(0)

    def __init__(self) -> None:
        self.observed: list[tuple[str, int]] = []
        """Requests that were observed, and how many tokens came at once."""
        self.predictions: dict[str, list[int]] = {}
        self.is_predicted: dict[str, bool] = {}
        self.outputs: dict[str, list[int]] = {}
        self.openings: list[proposer_pb2.Open] = []
        self.opened: list[str] = []
        self.refused: set[str] = set()
        self.spoiled: set[str] = set()
        """Requests whose windows cannot be of them."""
        self.closed: list[str] = []
        self.num_batches = 0
        self.num_gaps = 0
        self.delay_seconds = 0.0
        self.window_tokens = 8

    def forget(self) -> None:
        """Loses its memory."""
        self.predictions.clear()
        self.outputs.clear()

    async def Propose(  # noqa: N802
        self, request_iterator: AsyncIterator[proposer_pb2.ProposeRequest], context: _Context
    ) -> AsyncIterator[proposer_pb2.ProposeResponse]:
        async for request in request_iterator:
            self.num_batches += 1
            response = self.answer(request)
            await asyncio.sleep(self.delay_seconds)
            yield response

    def answer(self, request: proposer_pb2.ProposeRequest) -> proposer_pb2.ProposeResponse:
        response = proposer_pb2.ProposeResponse(batch=request.batch)
        touched: dict[str, None] = {}
        for item in request.opens:
            self.openings.append(item)
            self.opened.append(item.request_id)
            if item.request_id in self.refused:
                response.refusals.add(request_id=item.request_id, reason="too long for the test")
                continue
            source = item.predicted_token_ids or item.prompt_token_ids
            self.predictions[item.request_id] = from_bytes(source).tolist()
            self.is_predicted[item.request_id] = bool(item.predicted_token_ids)
            self.outputs[item.request_id] = []
            touched[item.request_id] = None
        for observation in request.observations:
            request_id = observation.request_id
            output = self.outputs.get(request_id)
            if output is None or observation.position > len(output):
                known = -1 if output is None else len(output)
                response.gaps.add(request_id=request_id, num_known_tokens=known)
                self.num_gaps += 1
                continue
            token_ids = from_bytes(observation.token_ids).tolist()
            self.observed.append((request_id, len(token_ids)))
            output[observation.position :] = token_ids
            touched[request_id] = None
        for request_id in touched:
            self._add_window(response, request_id)
        for request_id in request.closed_request_ids:
            self.closed.append(request_id)
            self.predictions.pop(request_id, None)
            self.outputs.pop(request_id, None)
        return response

    def _add_window(self, response: proposer_pb2.ProposeResponse, request_id: str) -> None:
        prediction, output = self.predictions[request_id], self.outputs[request_id]
        base = len(output)
        if prediction[:base] != output:
            return
        tokens = prediction[base : base + self.window_tokens]
        is_predicted, places = self.is_predicted[request_id], range(len(tokens))
        window = response.windows.add(request_id=request_id, base=base, token_ids=to_bytes(tokens))
        window.prediction_positions = to_bytes([base + i if is_predicted else -1 for i in places])
        least = 1.5 if request_id in self.spoiled else 0.99
        window.values = floats_to_bytes([least ** (place + 1) for place in places])


@asynccontextmanager
async def serve_worker(
    servicer: FakeWorkerServicer, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    server = servicer.server = GrpcServer(host, port)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    try:
        servicer.port = await server.start()
        yield servicer.port
    finally:
        await server.end_calls(0)
    assert servicer.faults == []


@asynccontextmanager
async def serve_proposer(
    servicer: FakeProposerServicer, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    server = servicer.server = GrpcServer(host, port)
    proposer_pb2_grpc.add_ProposerServiceServicer_to_server(servicer, server.server)
    try:
        servicer.port = await server.start()
        await server.set_serving(serving=True)
        yield servicer.port
    finally:
        await server.end_calls(0)


@asynccontextmanager
async def serve_scheduler(
    worker_port: int, proposer_ports: list[int], **values: Any
) -> AsyncIterator[tuple[Engine, "scheduler_pb2_grpc.SchedulerServiceAsyncStub"]]:
    """Runs a scheduler that is connected to its worker; yields its engine and a client."""
    async with serve_fleet([worker_port], proposer_ports, **values) as (fleet, stub):
        yield fleet.engines[0], stub


@asynccontextmanager
async def serve_fleet(
    worker_ports: list[int], proposer_ports: list[int], **values: Any
) -> AsyncIterator[tuple[Fleet, "scheduler_pb2_grpc.SchedulerServiceAsyncStub"]]:
    """Runs a scheduler that is connected to one of its workers; yields it and a client.

    The workers take no time, so that no wait would pay.
    """
    values = {"proposer_wait": "always", **values}
    settings = SchedulerSettings(
        workers=values.pop("workers", [f"127.0.0.1:{port}" for port in worker_ports]),
        insecure=True,
        proposers=values.pop("proposers", [f"127.0.0.1:{port}" for port in proposer_ports]),
        **values,
    )
    fleet = Fleet(settings)
    running = asyncio.create_task(fleet.run())
    async with serve(fleet) as stub:
        try:
            await asyncio.wait_for(fleet.until_reached(), 20)
            yield fleet, stub
        finally:
            assert not running.done(), running.result()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def serve(fleet: Fleet) -> AsyncIterator["scheduler_pb2_grpc.SchedulerServiceAsyncStub"]:
    """Serves what may not run yet; yields a client."""
    server = GrpcServer("127.0.0.1", 0)
    servicer = SchedulerServicer(fleet)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.server)
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield scheduler_pb2_grpc.SchedulerServiceStub(channel)
    finally:
        await server.end_calls(0)
