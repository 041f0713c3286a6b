"""A kernel that fails is replaced by plain PyTorch, which then writes the same text."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from optimist_common.errors import SetupError
from optimist_worker.core.acceptance.verdict import REACH_VERDICT
from optimist_worker.core.batch.flat_batch import LAY_OUT
from optimist_worker.core.batch.results import SETTLE
from optimist_worker.core.batch.window_table import DRAFT_WINDOWS
from optimist_worker.core.drafts import MERGE
from optimist_worker.core.lookup import LOOK_UP
from optimist_worker.core.operation import Operation
from optimist_worker.model import kernel_check, step_check
from optimist_worker.model.kernel_check import OPERATIONS, check_kernels, replaced_kernels
from optimist_worker.model.model import load_model
from optimist_worker.service import process
from optimist_worker.service.observing import REPLACED_KERNELS
from optimist_worker.settings import WorkerSettings
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12]
Kernels = dict[str, Callable[..., Any]]


@pytest.fixture
def hybrid_path(checkpoint: Callable[[str], Path]) -> Path:
    """A model that needs all kernels."""
    return checkpoint("qwen3_5")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """What stands in for the kernels on a device that has them; plain PyTorch at first."""
    found: Kernels = {operation.name: operation.plain for operation in OPERATIONS}
    monkeypatch.setattr(
        Operation, "kernel_for", lambda self, _: None if self.is_replaced else found.get(self.name)
    )
    for operation in OPERATIONS:
        monkeypatch.setattr(operation, "is_replaced", False)
    return found


class Broken:
    """A kernel that fails in some way."""

    def __init__(self, plain: Callable[..., Any], way: str) -> None:
        self.plain, self.way, self.num_calls = plain, way, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.num_calls += 1
        if self.way == "raises":
            raise ValueError("no such instruction")
        results = self.plain(*arguments, **named)
        if results is None:
            # What it wrote to the pool, or the states that it moved.
            pool = arguments[2] if isinstance(arguments[2], torch.Tensor) else arguments[0]
            pool.mul_(1.1)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, torch.Tensor):
                result[-1:] = float("nan") if self.way == "not finite" else result[-1:] * 1.1
        return results


@pytest.mark.parametrize("way", ["wrong", "not finite"])
def test_broken_kernels_are_replaced(
    way: str, kernels: Kernels, hybrid_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One after the other, each beside sound ones."""
    model = load_model(str(hybrid_path), "float32", "cpu")
    for operation in [one for one in OPERATIONS if one not in step_check.OPERATIONS]:
        broken = kernels[operation.name] = Broken(operation.plain, way)
        with caplog.at_level(logging.WARNING):
            check_kernels(model, 16)
        assert replaced_kernels() == [operation.name]
        assert f"plain PyTorch replaces the kernel {operation.name}, which is slow" in caplog.text
        assert broken.num_calls == 1
        kernels[operation.name], operation.is_replaced = operation.plain, False


def _wrong(operation: Operation) -> Callable[..., Any]:
    """Of what an operation returns, something is one too much."""

    def run(*arguments: Any, **named: Any) -> Any:
        results = operation.plain(*arguments, **named)
        drafts = results.drafts if operation is DRAFT_WINDOWS else results
        others = {REACH_VERDICT: "num_accepted", SETTLE: "packed", LAY_OUT: "slot_mapping"}
        getattr(drafts, others.get(operation, "num_tokens"))[:3] += 1
        return results

    return run


def test_kernels_around_the_layers_are_compared_bit_for_bit(
    kernels: Kernels, hybrid_path: Path
) -> None:
    model = load_model(str(hybrid_path), "float32", "cpu")
    for operation in (LOOK_UP, DRAFT_WINDOWS, MERGE, LAY_OUT, REACH_VERDICT, SETTLE):
        kernels.clear()
        kernels[operation.name] = _wrong(operation)
        check_kernels(model, 16)
        assert replaced_kernels() == [operation.name]
        operation.is_replaced = False


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_worker_serves_without_kernels(
    kernels: Kernels, hybrid_path: Path, *, has_kernels: bool
) -> None:
    expected = generate(build_runner(hybrid_path, "float32"), PROMPT, 12)
    broken = [Broken(kernels[name], "raises") for name in kernels]
    kernels.update(zip(list(kernels), broken, strict=True))
    settings = WorkerSettings(
        model=str(hybrid_path), dtype="float32", num_kv_blocks=96, kernels=has_kernels
    )
    REPLACED_KERNELS.clear()
    runner = process.build_runner(settings)
    (metric,) = REPLACED_KERNELS.collect()
    shown = {sample.labels["kernel"]: sample.value for sample in metric.samples}
    REPLACED_KERNELS.clear()
    assert shown == dict.fromkeys(kernels, 1)
    assert [kernel.num_calls for kernel in broken] == [int(has_kernels)] * len(broken)
    assert generate(runner, PROMPT, 12) == expected


def test_a_kernel_that_ends_the_context_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> list[torch.Tensor]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", fault)
    (gate,) = (operation for operation in OPERATIONS if operation.name == "gate")
    message = r"cuda computes nothing any more after the kernel gate .* --no-kernels"
    case = lambda run: fault() if run is fault else []  # noqa: E731
    with pytest.raises(SetupError, match=message):
        kernel_check.check(gate, fault, case, torch.float32, torch.device("cuda"))
