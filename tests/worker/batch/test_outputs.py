import numpy as np
import pytest
import torch

from optimist_common.columns import Int32Column
from optimist_common.drafts import DraftSource
from optimist_worker.core.batch.results import Outputs, collect_result, pack, unpack
from optimist_worker.core.plan import Plan, PlannedRow, plan_repeat
from tests.worker.step import plan_rows

ROWS = [PlannedRow(slot, 1, 3, []) for slot in (4, 1, 3, 0)]


def outputs(**columns: list[int]) -> Outputs[Int32Column]:
    number = len(columns["lengths"])
    whole = {name: columns.get(name, [0] * number) for name in Outputs._fields}
    return Outputs(**{name: np.array(column, np.int32) for name, column in whole.items()})


OUTPUTS = outputs(
    lengths=[12, 7, 30],
    num_emitted_tokens=[2, 0, 1],
    num_drafted_tokens=[3, 0, 2],
    num_accepted_tokens=[1, 0, 0],
    draft_sources=[1, 0, 3],
    has_ended=[0, 0, 1],
    num_fed_tokens=[4, 5, 3],
    window_nodes=[7, 0, 0],
    token_ids=[20, 21, 40],
    accepted_nodes=[9],
)


@pytest.fixture
def plan() -> Plan:
    return plan_rows(8, ROWS, num_repeats=3)


def test_results_are_in_the_order_of_the_plan(plan: Plan) -> None:
    result = collect_result(plan, [4, 3, 0], OUTPUTS, {1: "why"}, {1: 9}, 55)
    spread = {
        "slots": [4, 1, 3, 0],
        "lengths": [12, 9, 7, 30],
        "num_emitted_tokens": [2, 0, 0, 1],
        "token_ids": [20, 21, 40],
        "num_drafted_tokens": [3, 0, 0, 2],
        "num_accepted_tokens": [1, 0, 0, 0],
        "draft_sources": [1, 0, 0, 3],
        "window_nodes": [7, 0, 0, 0],
        "accepted_nodes": [9],
    }
    for name, column in spread.items():
        assert getattr(result, name).tolist() == column, name
    # Slot 0 has ended and slot 1 has failed.
    numbers = (result.sequence, result.repeat, result.draft_ns, result.num_tokens)
    assert (*numbers, result.num_live_rows) == (8, 0, 55, 12, 2)
    assert result.errors == {1: "why"}
    again = plan_repeat(plan, result)
    assert again is not None
    assert (again.sequence, again.repeat) == (8, 1)
    assert [row[:3] for row in again.rows()] == [(4, 1, 3), (1, 0, 3), (3, 1, 3), (0, 1, 3)]


def test_rows_that_failed_on_the_device_cannot_go_on(plan: Plan) -> None:
    result = collect_result(plan, [4, 3, 0], OUTPUTS, {1: "why", 3: "not finite"}, {}, 0)
    assert result.num_live_rows == 1
    assert result.lengths.tolist() == [12, 0, 7, 30]


def test_accepted_nodes_are_those_of_windows() -> None:
    columns = {name: torch.zeros(3, dtype=torch.int64) for name in Outputs._fields[:-2]}
    columns["num_emitted_tokens"] = torch.tensor([3, 0, 2])
    columns["num_accepted_tokens"] = torch.tensor([2, 0, 1])
    columns["draft_sources"] = torch.tensor([DraftSource.EAGLE, 0, DraftSource.PREDICTION])
    token_ids, nodes = torch.arange(20, 29).view(3, 3), torch.arange(6).view(3, 2)
    packed = pack(Outputs(**columns, token_ids=token_ids, accepted_nodes=nodes))
    assert packed.dtype == torch.int32
    unpacked = unpack(packed.numpy())
    assert unpacked.token_ids.tolist() == [20, 21, 22, 26, 27]
    assert unpacked.accepted_nodes.tolist() == [4]
