"""Blocks for keys and values fill what a GPU has left after weights and the largest passes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from optimist_common.errors import SetupError
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.model.model import Model
from optimist_worker.runner import footprint
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
