"""A served worker and plans as messages, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import from_bytes
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_worker.core.plan import PlannedRow
from optimist_worker.execution.codec import write_plan
from optimist_worker.runner.cost import MeasuredCosts
from optimist_worker.runner.runner import Runner
from optimist_worker.service.servicer import WorkerServicer
from tests.worker.step import admit, plan_rows

COSTS = MeasuredCosts({1: 70, 2: 70, 4: 90}, {1: 30, 2: 50})
PROMPT = [5, 6, 7, 8, 9]
Stub = Any


@asynccontextmanager
async def serve(runner: Runner) -> AsyncIterator[Stub]:
    async with serve_port(runner) as port, open_channel(f"127.0.0.1:{port}") as channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)


@asynccontextmanager
async def serve_port(runner: Runner) -> AsyncIterator[int]:
    servicer = WorkerServicer(runner, COSTS)
    server = GrpcServer("127.0.0.1", 0)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    try:
        yield await server.start()
    finally:
        await server.stop()
        servicer.close()


def first_plan(
    sequence: int, slot: int, tokens: Sequence[int] = PROMPT, **options: Any
) -> worker_pb2.ExecuteRequest:
    """A plan of one row, the whole prompt of a new request; options are of its admission."""
    rows = [PlannedRow(slot, len(PROMPT), 4, [8 * slot + i for i in range(8)])]
    admissions = [admit(slot, tokens, **options)]
    return write_plan(plan_rows(sequence, rows, admissions=admissions))


def plan(sequence: int, slot: int) -> worker_pb2.ExecuteRequest:
    """A plan of the last token of one slot, and drafts."""
    return write_plan(plan_rows(sequence, [PlannedRow(slot, 1, 4, [])]))


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


async def read(call: Any) -> worker_pb2.ExecuteResponse:
    response = await asyncio.wait_for(call.read(), 20)
    assert isinstance(response, worker_pb2.ExecuteResponse)
    return response


def said(response: worker_pb2.ExecuteResponse) -> dict[int, list[int]]:
    """The new tokens of each slot."""
    ends = np.cumsum(from_bytes(response.num_emitted_tokens))[:-1]
    slots = from_bytes(response.slots).tolist()
    # Of no rows there is one empty text.
    texts = np.split(from_bytes(response.token_ids), ends)[: len(slots)]
    return {slot: text.tolist() for slot, text in zip(slots, texts, strict=True)}
