"""Blocks for keys and values fill what a GPU has left after weights and the largest passes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from optimist_common.errors import SetupError
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.model.model import Model
from optimist_worker.runner import footprint
from optimist_worker.runner.footprint import bytes_for_blocks
from optimist_worker.service.process import build_runner
from optimist_worker.settings import WorkerSettings

MIB = 2**20
BLOCK_BYTES = 16 * 4 * 2 * 2 * 16 * 4
"""Tokens, layers, keys and values, heads, dimensions, bytes."""


class Gpu:
    """A device with so much memory, of which a pass takes some."""

    def __init__(self, free: int, total: int, footprint: int) -> None:
        self.free, self.total, self.footprint = free, total, footprint
        self.has_begun = False

    def begin(self) -> None:
        self.has_begun = True

    def most_more(self) -> int:
        assert self.has_begun
        return self.footprint

    def free_and_total(self) -> tuple[int, int]:
        return self.free, self.total


@pytest.mark.parametrize(
    ("utilization", "graph_share", "left"),
    [(1.0, 0.0, 690), (1.0, 0.25, 687.5), (0.9, 0.0, 590), (0.2, 0.0, -110)],
)
def test_what_is_left(utilization: float, graph_share: float, left: float) -> None:
    """Of 1,000 MiB, 300 are in use, by the weights or by others, and a pass takes 10."""
    gpu: Any = Gpu(700 * MIB, 1000 * MIB, 10 * MIB)
    found = bytes_for_blocks(gpu, utilization, gpu.footprint, graph_share)
    assert found == pytest.approx(left * MIB, abs=1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu(50 * MIB, 100 * MIB, 8 * MIB)
    monkeypatch.setattr(footprint, "meter_of", lambda device: gpu)
    return gpu


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Tokens and logits of each pass."""
    found: list[tuple[int, int]] = []
    forward = Model.forward

    def note(model: Model, batch: FlatBatch) -> torch.Tensor:
        logits = forward(model, batch)
        found.append((len(batch.input_ids), len(logits)))
        return logits

    monkeypatch.setattr(Model, "forward", note)
    return found


def settings(path: Path, **options: Any) -> WorkerSettings:
    return WorkerSettings(
        model=str(path),
        dtype="float32",
        max_num_batched_tokens=600,
        **{"max_num_seqs": 40} | options,
    )


def test_blocks_fill_what_the_largest_passes_leave(
    llama_path: Path,
    gpu: Gpu,
    passes: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(footprint, "MOST_TOKENS", 450)
    runner = build_runner(settings(llama_path, gpu_memory_utilization=0.8))
    left = (50 - 20 - 8 - 8 * 450 / 600) * MIB
    assert runner.engine.state.sizes.num_blocks == left // BLOCK_BYTES
    # A chunk of a prompt, and two rows with 256 drafts.
    assert passes[:2] == [(600, 1), (2 * 257, 2 * 257)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Short sequences, so the passes have more rows.
        ({"max_model_len": 60, "max_num_seqs": 3}, [(177, 3), (177, 177)]),
        ({"max_model_len": 2}, [(40, 40), (40, 40)]),
    ],
)
def test_passes_are_as_large_as_they_may_become(
    llama_path: Path,
    gpu: Gpu,
    passes: list[tuple[int, int]],
    options: dict[str, int],
    expected: list[tuple[int, int]],
) -> None:
    build_runner(settings(llama_path, **options))
    assert passes[:2] == expected


def test_what_is_set_is_not_measured(
    llama_path: Path, gpu: Gpu, passes: list[tuple[int, int]]
) -> None:
    runner = build_runner(settings(llama_path, num_kv_blocks=70))
    assert runner.engine.state.sizes.num_blocks == 70
    runner = build_runner(settings(llama_path, kv_memory_mib=1))
    assert runner.engine.state.sizes.num_blocks == MIB // BLOCK_BYTES
    assert passes == []
    assert not gpu.has_begun


def test_too_little_memory_is_one_clear_sentence(
    llama_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SetupError, match=r"--gpu-memory-utilization: 0\.5 leaves -\d+ MiB"):
        build_runner(settings(llama_path, gpu_memory_utilization=0.5))

    def fail(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Model, "forward", fail)
    with pytest.raises(SetupError, match=r"--max-num-batched-tokens: a pass of 600 tokens fails"):
        build_runner(settings(llama_path))
