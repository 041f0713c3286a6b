"""The kernels in Triton's interpreter, beside test_attention.py; test_triton.py runs this.

The interpreter has no products of bfloat16: float16 is used instead.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from optimist_worker.core.acceptance import choice_kernel
from optimist_worker.core.acceptance.choice import CHOOSE
from optimist_worker.core.operation import Function, Operation
from optimist_worker.model import kernel_check
from optimist_worker.model.kernel_check import BatchRow, check_kernels, replaced_kernels
from optimist_worker.model.model import load_model
from tests.worker.acceptance.choice_case import SAMPLING, assert_as_plain
from tests.worker.attention.attention_case import BatchRow as Row
from tests.worker.attention.attention_case import make_case
from tests.worker.attention.test_attention import LONG, SHAPE, check
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12]
DTYPES = ("float32", "float16")


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel_for(operation: Operation, inputs: torch.Tensor) -> Function | None:
        is_plain = operation.is_replaced or inputs.dtype == torch.float64
        return None if is_plain else operation.cuda_kernel

    monkeypatch.setattr(Operation, "kernel_for", kernel_for)
    # The interpreter takes its time for each key.
    rows = [[BatchRow(300, 1)], [BatchRow(270, 3), BatchRow(3, 130)], [BatchRow(20, 1, 7)]]
    monkeypatch.setattr(kernel_check, "_BATCHES", rows)
    # And for each program.
    monkeypatch.setattr(choice_kernel, "_NUM_PARTS", 4)


@pytest.mark.parametrize(
    ("family", "dtype"),
    # Keys of DeepSeek have another size than values.
    [
        *((each, dtype) for each in ("llama", "gemma2") for dtype in DTYPES),
        ("deepseek_v3", DTYPES[0]),
    ],
)
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [3, 1100])
@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_choices_are_those_of_plain_pytorch(
    sampling: dict[str, Any], vocab_size: int, dtype: str
) -> None:
    assert CHOOSE.cuda_kernel is not None
    assert_as_plain(CHOOSE.cuda_kernel, vocab_size, getattr(torch, dtype), 4, sampling)


def test_attention_in_half_precision() -> None:
    check(make_case(LONG[:3], dtype=torch.float16))


def test_rows_with_more_keys_than_parts_of_the_least_size() -> None:
    check(make_case([Row(8500, 1), Row(8191, 1)], SHAPE, torch.float32))
