"""The kernels around the layers do what plain PyTorch does, in Triton's interpreter.

Run by test_triton.py. What is plain PyTorch here too, the layers, is in float64.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core import transfers
from optimist_worker.core.acceptance import rules
from optimist_worker.core.batch import row_kernels
from optimist_worker.core.operation import Function, Operation
from optimist_worker.core.plan import Plan
from optimist_worker.runner.runner import LaunchedPlan, Runner
from tests.worker.batch.test_window_table import Comparison
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.runner.test_padding import check_scenario
from tests.worker.scenario import Scenario, find_truths
from tests.worker.step import build_runner
from tests.worker.tables import SIZE, make_tables

MANNERS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5),
    SamplingParams(temperature=1.1, top_k=9, min_p=0.02, seed=-8, repetition_penalty=1.2),
    SamplingParams(logit_bias={7: 3.0}, presence_penalty=0.4),
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that read sizes run plain PyTorch, and all others the kernels."""
    launch, reads = Runner.launch, [False]

    def note_and_launch(runner: Runner, plan: Plan) -> LaunchedPlan:
        reads[0] = runner.engine.state.table.reads_sizes
        return launch(runner, plan)

    def kernel_for(operation: Operation, inputs: torch.Tensor) -> Function | None:
        return None if reads[0] or inputs.dtype == torch.float64 else operation.cuda_kernel

    monkeypatch.setattr(Runner, "launch", note_and_launch)
    monkeypatch.setattr(Operation, "kernel_for", kernel_for)
    monkeypatch.setattr(rules, "_may_read", lambda tensor: reads[0])


def test_all_values_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "send", lambda tensor, device: tensor)
    writes = transfers.Writes(SimpleNamespace(type="interpreter"))  # type: ignore[arg-type]
    columns = torch.zeros((7, 5), dtype=torch.int64)
    token_ids = torch.zeros((3, 3000), dtype=torch.int32)
    reals = torch.zeros((2, 4), dtype=torch.float64)
    long = list(range(2500))
    writes.put(columns[:, 2], [1, 2, 3, -4, 2**40, 6, 7])
    writes.put(token_ids[1, : len(long)], long)
    writes.put(token_ids[2, 1:1], [])
    writes.put(reals[:, 3], [0.1, float("-inf")])
    writes.put(columns[3, 4:5], [9])
    assert not token_ids.any()
    writes.flush()
    assert columns[:, 2].tolist() == [1, 2, 3, -4, 2**40, 6, 7]
    assert token_ids[1].tolist() == long + [0] * 500
    assert reals[:, 3].tolist() == [0.1, float("-inf")]
    assert (int(columns.count_nonzero()), int(columns[3, 4])) == (8, 9)
    assert not token_ids[::2].any()
    writes.flush()


def test_paths_move_in_a_pool_of_more_elements_than_32_bits_count() -> None:
    """Memory that nobody touches takes none."""
    tables, size = make_tables(), 16
    last_block = 2**31 // size // SIZE + 1
    memory = torch.empty((2, (last_block + 1) * SIZE, 1, size), dtype=torch.uint8)
    tables.table.block_tables[0, :2] = torch.tensor([3, last_block])
    # Index 3 is the last one of the first block, and index 4 the first of the last.
    sources = [index + last_block * SIZE for index in range(3)]
    for layer in (0, 1):
        for number, index in enumerate(sources):
            memory[layer, index] = 10 * layer + number
    path, slots = torch.tensor([[1, 3, 0]]), torch.tensor([0])
    pool: Any = SimpleNamespace(memory=[memory])
    row_kernels.move_path(path, torch.tensor([2]), slots, torch.tensor([3]), tables.table, pool)
    assert memory[:, 3 * SIZE + 3, 0, 0].tolist() == [0, 10]
    assert memory[:, last_block * SIZE, 0, 0].tolist() == [2, 12]
    assert memory[:, last_block * SIZE + 1, 0, 0].tolist() == [1, 11]


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_any_windows_are_followed_as_they_are_meant(data: st.DataObject) -> None:
    Comparison(data).run()


@pytest.mark.parametrize("way", ["none", "ngram"])
def test_steps_are_those_of_plain_pytorch(llama_path: Path, way: str) -> None:
    """Chunks of prompts, windows, trees, stops, penalties, seeds, and rows that are padding."""
    reading, padding = (
        build_runner(llama_path, reads_sizes=reads_sizes)
        if way == "none"
        else drafting_runner(llama_path, way, SHAPES["chain"], reads_sizes=reads_sizes)
        for reads_sizes in (True, False)
    )
    truths = find_truths(reading, MANNERS, 30)
    assert check_scenario(reading, padding, Scenario(1, truths)) > 0
