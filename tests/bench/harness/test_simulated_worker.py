"""The simulated worker, also as a process, keeps the contract of plans and results."""

from functools import partial
from typing import Any

import grpc
import pytest

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_bench.harness.simulated_worker import PlanError, SimulatedModel, SimulatedWorker
from optimist_common.columns import from_bytes, to_bytes

MODEL = SimulatedModel(block_size=4, num_blocks=64, max_num_seqs=4)
WINDOW = worker_pb2.Window(slot=0, token_ids=to_bytes(list(range(8))))


def plan(sequence: int = 1, num_known: int = 1, **columns: Any) -> worker_pb2.ExecuteRequest:
    """Returns a plan for one row, which decodes unless it says otherwise."""
    columns = {"slots": [0], "num_known_tokens": [num_known], "num_draft_tokens": [0]} | columns
    columns.setdefault("num_new_blocks", [0])
    columns.setdefault("new_blocks", range(sum(columns["num_new_blocks"])))
    others = ("admissions", "windows")
    values: dict[str, Any] = {
        name: value if name in others else to_bytes(list(value)) for name, value in columns.items()
    }
    return worker_pb2.ExecuteRequest(sequence=sequence, **values)


def beginning(num_blocks: int, num_known: int = 6, **columns: Any) -> worker_pb2.ExecuteRequest:
    """Returns the first plan, which admits a prompt of six tokens."""
    columns.setdefault("admissions", [admission()])
    return plan(1, num_known, num_new_blocks=[num_blocks], **columns)


def admission(num_tokens: int = 6) -> worker_pb2.Admission:
    tokens = to_bytes(list(range(num_tokens)))
    return worker_pb2.Admission(token_ids=tokens, num_prompt_tokens=num_tokens)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"slots": [1]}, "slots"),
        ({"released_slots": [1]}, "released_slots"),
        ({"admissions": [admission()]}, "admissions.slot"),
        ({"num_known_tokens": [2]}, "num_known_tokens"),
        ({"new_blocks": [1]}, "new_blocks"),
        # The drafts need more blocks.
        ({"windows": [WINDOW], "num_draft_tokens": [4]}, "new_blocks"),
    ],
)
def test_a_plan_that_breaks_the_contract_is_refused(fault: dict[str, Any], name: str) -> None:
    worker = SimulatedWorker(MODEL)
    worker.execute(beginning(2))
    with pytest.raises(PlanError, match=name):
        worker.execute(plan(2, **fault))


async def test_plans_are_run_in_order_and_take_their_time() -> None:
    begin = partial(beginning, 1, 3, admissions=[admission(3)])
    with simulated_worker(step_us=2000, stall_every=2, stall_us=30_000) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
            description = await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
            first, second = [each async for each in stub.Execute(iter([begin(), plan(2)]))]
            with pytest.raises(grpc.aio.AioRpcError, match="slots: one is free"):
                await stub.Execute(iter([plan(2)])).read()
    assert description.max_num_seqs == 64
    assert (first.sequence, second.sequence) == (1, 2)
    assert from_bytes(second.lengths).tolist() == [5]
    assert first.step_ns >= 2_000_000
    assert second.step_ns >= 32_000_000
