"""A served worker and plans as messages, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_worker.runner.cost import CostCurve, MeasuredCosts
from optimist_worker.runner.runner import Runner
from optimist_worker.service.servicer import WorkerServicer

COSTS = MeasuredCosts(CostCurve([1, 2, 4], [70, 70, 90]), drafter_us=[30, 50])
PROMPT = [5, 6, 7, 8, 9]
Stub = Any

_ADMISSION = ("sampling", "cached_blocks", "max_length", "min_length", "stop_token_ids")


@asynccontextmanager
async def serve(runner: Runner) -> AsyncIterator[Stub]:
    servicer = WorkerServicer(runner, COSTS)
    server = GrpcServer("127.0.0.1", 0)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    port = await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)
    await server.stop()
    servicer.close()


def plan(
    sequence: int, slot: int, *, admit: bool = False, blocks: int = 4, **fields: Any
) -> worker_pb2.ExecuteRequest:
    """A plan of one row; with `admit`, the row is the whole prompt of a new request."""
    admissions, new_blocks = [], [] if not admit else [blocks * slot + i for i in range(blocks)]
    if admit:
        options = {name: fields.pop(name) for name in _ADMISSION if name in fields}
        admissions = [
            worker_pb2.Admission(
                slot=slot,
                request_id="r",
                token_ids=to_bytes(fields.pop("tokens", PROMPT)),
                num_prompt_tokens=len(PROMPT),
                **options,
            )
        ]
    columns = {
        "slots": to_bytes([slot]),
        "num_known_tokens": to_bytes([len(PROMPT) if admit else 1]),
        "num_draft_tokens": to_bytes([4]),
        "num_new_blocks": to_bytes([len(new_blocks)]),
        "new_blocks": to_bytes(new_blocks),
    }
    return worker_pb2.ExecuteRequest(sequence=sequence, admissions=admissions, **(columns | fields))


async def read(call: Any) -> worker_pb2.ExecuteResponse:
    response = await asyncio.wait_for(call.read(), 20)
    assert isinstance(response, worker_pb2.ExecuteResponse)
    return response
