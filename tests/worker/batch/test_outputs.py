import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.columns import Int32Column
from optimist_common.drafts import DraftSource
from optimist_worker.core.batch.results import Outputs, collect_result, no_outputs, pack, unpack
from optimist_worker.core.plan import Plan, PlannedRow, plan_repeat
from tests.worker.step import plan_rows

NAMES = Outputs._fields[:-2]


@given(
    emitted=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    num_free=st.integers(0, 2),
    num_padded=st.integers(0, 2),
)
def test_what_is_packed_is_unpacked(emitted: list[int], num_free: int, num_padded: int) -> None:
    number, width = len(emitted), max(1, *emitted) + num_free
    columns = {name: torch.arange(number) + 10 * i for i, name in enumerate(NAMES)}
    columns["num_emitted_tokens"] = torch.tensor(emitted)
    columns["is_short"] = torch.arange(number) % 2 == 0
    columns = {name: pad(column, num_padded) for name, column in columns.items()}
    tokens = torch.arange((number + num_padded) * width).view(-1, width)
    accepted = [max(count - 1, 0) for count in emitted]
    columns["num_accepted_tokens"] = pad(torch.tensor(accepted), num_padded)
    sources = torch.arange(number) % 3
    columns["draft_sources"] = pad(sources, num_padded)
    nodes = -tokens[:, 1:]
    packed = pack(Outputs(**columns, token_ids=tokens, accepted_nodes=nodes))
    assert packed.dtype == torch.int32
    assert packed.shape == (number + num_padded, len(NAMES) + 2 * width - 1)
    outputs = unpack(packed[:number].numpy())
    for name in NAMES:
        assert getattr(outputs, name).tolist() == columns[name][:number].tolist()
    expected = [row * width + i for row, count in enumerate(emitted) for i in range(count)]
    assert outputs.token_ids.tolist() == expected
    assert outputs.token_ids.dtype == np.int32
    of_windows = [
        nodes[row, i].item()
        for row, count in enumerate(accepted)
        for i in range(count)
        if sources[row] == DraftSource.PREDICTION
    ]
    assert outputs.accepted_nodes.tolist() == of_windows


def pad(column: torch.Tensor, number: int) -> torch.Tensor:
    return torch.cat([column, torch.ones(number, dtype=column.dtype)])


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


def test_no_row_may_have_run(plan: Plan) -> None:
    result = collect_result(plan, [], no_outputs(), dict.fromkeys((0, 1, 3, 4), "why"), {3: 6}, 0)
    assert result.lengths.tolist() == [0, 0, 6, 0]
    assert result.num_emitted_tokens.tolist() == [0] * 4
    assert (len(result.token_ids), result.num_tokens, result.num_live_rows) == (0, 0, 0)
    assert plan_repeat(plan, result) is None


def test_all_rows_may_have_run() -> None:
    plan = plan_rows(1, [ROWS[0], ROWS[2], ROWS[3]])
    result = collect_result(plan, [4, 3, 0], OUTPUTS, {}, {}, 0)
    assert result.lengths.tolist() == [12, 7, 30]
    assert result.num_live_rows == 2
    # The wire format takes columns that lie in one piece.
    assert all(column.flags.c_contiguous for column in (result.lengths, result.draft_sources))
