"""The simulated worker, also as a process, keeps the contract of plans and results."""

from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_bench.harness.simulated_worker import PlanError, SimulatedModel, SimulatedWorker
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.acceptance import Drafter

MODEL = SimulatedModel(block_size=4, num_blocks=64, max_num_seqs=4)


def plan(sequence: int = 1, num_known: int = 1, **columns: Any) -> worker_pb2.ExecuteRequest:
    """Returns a plan for one row, which decodes unless it says otherwise."""
    columns = {"slots": [0], "num_known_tokens": [num_known], "num_draft_tokens": [0]} | columns
    columns.setdefault("num_new_blocks", [0])
    columns.setdefault("new_blocks", range(sum(columns["num_new_blocks"])))
    others = ("admissions", "windows", "num_repeats")
    values: dict[str, Any] = {
        name: value if name in others else to_bytes(list(value)) for name, value in columns.items()
    }
    return worker_pb2.ExecuteRequest(sequence=sequence, **values)


def beginning(num_blocks: int, num_known: int = 6, **columns: Any) -> worker_pb2.ExecuteRequest:
    """Returns the first plan, which admits a prompt of six tokens."""
    columns.setdefault("admissions", [admission()])
    return plan(1, num_known, num_new_blocks=[num_blocks], **columns)


def admission(slot: int = 0, num_tokens: int = 6, **values: Any) -> worker_pb2.Admission:
    tokens = to_bytes(list(range(num_tokens)))
    return worker_pb2.Admission(slot=slot, token_ids=tokens, num_prompt_tokens=num_tokens, **values)


def window(base: int, num_tokens: int, num_prompt_tokens: int = 6) -> worker_pb2.Window:
    positions = num_prompt_tokens + base + np.arange(num_tokens)
    return worker_pb2.Window(slot=0, base=base, token_ids=to_bytes(MODEL.expected(positions)))


def column(response: worker_pb2.ExecuteResponse, name: str) -> list[int]:
    values: list[int] = from_bytes(getattr(response, name)).tolist()
    return values


def test_a_prompt_in_chunks_emits_with_its_last_token() -> None:
    worker = SimulatedWorker(MODEL)
    first = worker.execute(beginning(2, num_known=4))
    assert column(first, "num_emitted_tokens") == [0]
    assert column(first, "lengths") == [6]
    last = worker.execute(plan(2, 2))
    assert column(last, "lengths") == [7]
    assert column(last, "token_ids") == MODEL.expected(np.array([6])).tolist()
    assert (first.num_tokens, last.num_tokens) == (4, 2)


def test_cached_blocks_are_computed_already() -> None:
    cached = admission(cached_blocks=to_bytes([5]))
    response = SimulatedWorker(MODEL).execute(beginning(1, num_known=2, admissions=[cached]))
    assert column(response, "num_emitted_tokens") == [1]


def test_drafts_come_from_the_window_up_to_its_end() -> None:
    begin = beginning(3, windows=[window(0, 3)], num_draft_tokens=[5])
    response = SimulatedWorker(MODEL).execute(begin)
    assert column(response, "num_drafted_tokens") == [3]
    assert column(response, "num_accepted_tokens") == [3]
    assert column(response, "token_ids") == MODEL.expected(np.arange(6, 10)).tolist()
    assert response.num_tokens == 6 + 3


def test_a_window_is_of_no_use_after_another_token() -> None:
    worker = SimulatedWorker(SimulatedModel(block_size=4, acceptance=0.0))
    worker.execute(beginning(5, windows=[window(0, 20)], num_draft_tokens=[4]))
    lost = worker.execute(plan(2, num_draft_tokens=[4]))
    assert column(lost, "num_drafted_tokens") == [0]
    assert column(lost, "token_ids") != MODEL.expected(np.array([7])).tolist()
    found = worker.execute(plan(3, windows=[window(2, 20)], num_draft_tokens=[4]))
    assert column(found, "num_drafted_tokens") == [4]
    assert column(found, "num_accepted_tokens") == [0]
    assert column(found, "lengths") == [9]


def test_a_request_ends_at_its_length_and_emits_nothing_more() -> None:
    worker, limited = SimulatedWorker(MODEL), admission(max_length=9)
    windows = [window(0, 8)]
    last = worker.execute(beginning(3, admissions=[limited], windows=windows, num_draft_tokens=[4]))
    assert column(last, "lengths") == [9]
    late = worker.execute(plan(2, num_draft_tokens=[4]))
    assert column(late, "lengths") == [9]
    assert column(late, "num_emitted_tokens") == column(late, "num_drafted_tokens") == [0]
    assert late.num_tokens == 0


def test_a_plan_is_repeated_as_often_as_it_says() -> None:
    worker = SimulatedWorker(MODEL)
    worker.execute(beginning(3, num_repeats=2))
    repeats = []
    while worker.can_repeat:
        repeats.append(worker.repeat())
    assert [each.repeat for each in repeats] == [1, 2]
    assert [column(each, "lengths") for each in repeats] == [[8], [9]]
    with pytest.raises(PlanError, match="num_repeats"):
        worker.repeat()


def test_no_row_that_goes_on_ends_the_repeats() -> None:
    worker = SimulatedWorker(MODEL)
    worker.execute(beginning(3, admissions=[admission(max_length=8)], num_repeats=5))
    worker.repeat()
    assert not worker.can_repeat


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"slots": [1]}, "slots"),
        ({"released_slots": [1]}, "released_slots"),
        ({"admissions": [admission()]}, "admissions.slot"),
        ({"num_known_tokens": [2]}, "num_known_tokens"),
        ({"new_blocks": [1]}, "new_blocks"),
        # The drafts need more blocks.
        ({"windows": [window(0, 8)], "num_draft_tokens": [4]}, "new_blocks"),
    ],
)
def test_a_plan_that_breaks_the_contract_is_refused(fault: dict[str, Any], name: str) -> None:
    worker = SimulatedWorker(MODEL)
    worker.execute(beginning(2))
    with pytest.raises(PlanError, match=name):
        worker.execute(plan(2, **fault))


@pytest.mark.parametrize(("num_drafts", "num_accepted"), [(6, 2), (3, 1), (9, 2), (0, 0)])
def test_a_drafter_drafts_where_no_window_does(num_drafts: int, num_accepted: int) -> None:
    model = replace(MODEL, drafter=Drafter(DraftSource.MEDUSA, 6, 2))
    assert model.describe().max_drafter_depth == 2
    worker = SimulatedWorker(model)
    worker.execute(beginning(5))
    response = worker.execute(plan(2, num_draft_tokens=[num_drafts]))
    assert column(response, "num_drafted_tokens") == [min(num_drafts, 6)]
    assert column(response, "num_accepted_tokens") == [num_accepted]
    assert column(response, "draft_sources") == [DraftSource.MEDUSA if num_drafts else 0]
    windows = [window(num_accepted + 2, 2)]
    both = worker.execute(plan(3, windows=windows, num_draft_tokens=[num_drafts]))
    assert column(both, "draft_sources") == [DraftSource.PREDICTION if num_drafts else 0]


async def test_plans_are_run_in_order_and_take_their_time() -> None:
    begin = partial(beginning, 1, 3, admissions=[admission(num_tokens=3)])
    with simulated_worker(step_us=2000, stall_every=2, stall_us=30_000) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
            description = await stub.Describe(worker_pb2.DescribeRequest(), wait_for_ready=True)
            first, second = [each async for each in stub.Execute(iter([begin(), plan(2)]))]
            # A plan is repeated until a newer one; a malformed one ends the stream.
            call = stub.Execute()
            await call.write(begin(num_repeats=3))
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
