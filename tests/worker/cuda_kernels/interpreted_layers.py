"""The kernels of decoder layers in Triton's interpreter; test_triton.py runs this.

The interpreter has no products of bfloat16: float16 is used instead.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from optimist_worker.core.operation import Function, Operation
from optimist_worker.model import kernel_check
from optimist_worker.model.kernel_check import BatchRow, check_kernels, replaced_kernels
from optimist_worker.model.model import load_model
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel_for(operation: Operation, inputs: torch.Tensor) -> Function | None:
        is_plain = operation.is_replaced or inputs.dtype == torch.float64
        return None if is_plain else operation.cuda_kernel

    monkeypatch.setattr(Operation, "kernel_for", kernel_for)
    # The interpreter takes its time for each key.
    rows = [[BatchRow(300, 1)], [BatchRow(270, 3), BatchRow(3, 66)], [BatchRow(20, 1, 7)]]
    monkeypatch.setattr(kernel_check, "_BATCHES", rows)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_no_kernel_is_replaced(
    family: str, dtype: str, checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(str(checkpoint(family)), dtype, "cpu")
    check_kernels(model, 16)
    assert replaced_kernels() == [], caplog.text


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_kernels_write_the_text_of_plain_pytorch(
    family: str, checkpoint: Callable[[str], Path]
) -> None:
    expected = generate(build_runner(checkpoint(family)), PROMPT, 6)
    assert generate(build_runner(checkpoint(family), "float32"), PROMPT, 6) == expected
