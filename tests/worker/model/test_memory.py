from pathlib import Path
from typing import Any

import pytest

from optimist_common.errors import SetupError
from optimist_worker.model.memory import plan_memory
from optimist_worker.model.model import Model, load_model
from optimist_worker.settings import WorkerSettings

BLOCK_BYTES = 16 * 4 * 2 * 2 * 16 * 8
"""Tokens, layers, keys and values, heads, dimensions, bytes."""


@pytest.fixture
def model(llama_path: Path) -> Model:
    return load_model(str(llama_path), "float64", "cpu")


def plan(model: Model, **options: Any) -> tuple[int, int]:
    sizes = plan_memory(WorkerSettings(model="m", **options), model)
    return sizes.num_blocks, sizes.max_model_len


def test_blocks_fill_the_memory_and_no_more(model: Model) -> None:
    num_blocks = 2**20 // BLOCK_BYTES
    assert plan(model, kv_memory_mib=1) == (num_blocks, num_blocks * 16)


def test_blocks_end_at_what_all_slots_can_use(model: Model) -> None:
    assert plan(model, max_num_seqs=3) == (3 * 64, 1024)
    assert plan(model, max_num_seqs=3, max_model_len=100) == (3 * 7, 100)


def test_number_of_blocks_can_be_given(model: Model) -> None:
    assert plan(model, num_kv_blocks=10) == (10, 160)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_model_len": 1025}, "more than the 1024 positions"),
        ({"max_model_len": 161, "num_kv_blocks": 10}, "do not fit into 10 blocks"),
        ({"kv_memory_mib": 1, "block_size": 1024}, "one block takes"),
    ],
)
def test_impossible_sizes_are_refused(options: dict[str, int], words: str, model: Model) -> None:
    with pytest.raises(SetupError, match=words):
        plan(model, **options)
