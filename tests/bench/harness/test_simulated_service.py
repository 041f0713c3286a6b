"""The simulated worker as a process."""

from typing import Any

import grpc
import pytest

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_common.columns import from_bytes, to_bytes


def plan(sequence: int, num_repeats: int = 0) -> worker_pb2.ExecuteRequest:
    request = worker_pb2.ExecuteRequest(sequence=sequence, num_repeats=num_repeats)
    if sequence == 1:
        tokens = to_bytes([1, 2, 3])
        request.admissions.add(slot=0, token_ids=tokens, num_prompt_tokens=3)
        request.num_new_blocks, request.new_blocks = to_bytes([1]), to_bytes([0])
    else:
        request.num_new_blocks = to_bytes([0])
    request.slots, request.num_draft_tokens = to_bytes([0]), to_bytes([0])
    request.num_known_tokens = to_bytes([3 if sequence == 1 else 1])
    return request


async def test_plans_are_run_in_order_and_take_their_time() -> None:
    with simulated_worker(step_us=2000, stall_every=2, stall_us=30_000) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
            description = await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
            first, second = [each async for each in stub.Execute(iter([plan(1), plan(2)]))]
            # A plan is repeated until a newer one; a malformed one ends the stream.
            call = stub.Execute()
            await call.write(plan(1, num_repeats=3))
            results = aiter(call)
            responses = [await anext(results) for _ in range(4)]
            await call.write(plan(2))
            responses.append(await anext(results))
            await call.done_writing()
            assert await anext(results, None) is None
            with pytest.raises(grpc.aio.AioRpcError, match="slots: one is free"):
                await stub.Execute(iter([plan(2)])).read()
    assert description.max_num_seqs == 64
    assert (first.sequence, second.sequence) == (1, 2)
    assert from_bytes(second.lengths).tolist() == [5]
    assert first.step_ns >= 2_000_000
    assert second.step_ns >= 32_000_000
    numbers = [(each.sequence, each.repeat) for each in responses]
    assert numbers == [*((1, repeat) for repeat in range(4)), (2, 0)]
    assert [from_bytes(each.lengths)[0] for each in responses] == [4, 5, 6, 7, 8]
