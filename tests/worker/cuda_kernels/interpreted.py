"""The kernels compute what plain PyTorch does, in Triton's interpreter; test_triton.py runs this.

It takes its time for each program, head and key, so there are few. It has no products of bfloat16:
float16 is used instead.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from optimist_worker.core.acceptance import choice_kernel
from optimist_worker.core.acceptance.choice import CHOOSE, PICK, pick
from optimist_worker.core.attention import launch
from optimist_worker.core.operation import Function, Operation
from optimist_worker.model import kernel_check
from optimist_worker.model.kernel_check import BatchRow, check_kernels, replaced_kernels
from optimist_worker.model.model import load_model
from tests.worker.acceptance.choice_case import SAMPLING, assert_as_plain
from tests.worker.attention import test_attention as attention
from tests.worker.attention.attention_case import TREE, WIDE_TREE, Shape, make_case
from tests.worker.attention.attention_case import BatchRow as Row
from tests.worker.attention.test_attention import attend, check, check_alone
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7]
ONE_HEAD = Shape(1, 1)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel_for(operation: Operation, inputs: torch.Tensor) -> Function | None:
        is_plain = operation.is_replaced or inputs.dtype == torch.float64
        return None if is_plain else operation.cuda_kernel

    monkeypatch.setattr(Operation, "kernel_for", kernel_for)
    monkeypatch.setattr(attention, "attend_rows", launch.attend)
    rows = [[BatchRow(20, 3), BatchRow(3, 20)], [BatchRow(20, 1, 7)]]
    monkeypatch.setattr(kernel_check, "_BATCHES", rows)
    monkeypatch.setattr(choice_kernel, "_NUM_PARTS", 4)


@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "options"),
    [
        # Several parts of keys, and a row with too many tokens for parts.
        ([Row(300, 1), Row(270, 2, TREE), Row(0, 70)], ONE_HEAD, torch.float32, {"window": 24}),
        ([Row(140, 1, WIDE_TREE), Row(33, 0), Row(8, 1)], ONE_HEAD, torch.float32, {}),
        ([Row(0, 7), Row(270, 1, TREE[:3])], Shape(5, 1, 24, 40), torch.float32, {}),
        ([Row(37, 1), Row(270, 1)], Shape(2, 1), torch.float16, {"softcap": 0.7}),
        ([Row(8500, 1)], ONE_HEAD, torch.float32, {}),
    ],
)
def test_attention(
    rows: list[Row], shape: Shape, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    check(make_case(rows, shape, dtype), **options)


def test_sinks_and_rows_alone_are_bit_for_bit_the_same() -> None:
    case = make_case([Row(37, 1), Row(20, 2, TREE), Row(270, 3)], ONE_HEAD, torch.float32)
    check(case, window=24, sinks=torch.tensor([3.0]))
    check_alone(case, window=24, sinks=torch.tensor([3.0]))


def test_padding_is_zero_and_changes_nothing() -> None:
    case = make_case([Row(20, 2, TREE), Row(270, 1)], ONE_HEAD, torch.float32, num_padded_tokens=5)
    plain = attend(case, {"num_padded_tokens": 5})
    assert torch.equal(plain[-5:], torch.zeros_like(plain[-5:]))
    options = {"num_padded_tokens": 5, "num_padded_rows": 3, "bounds": (200, 1000)}
    assert torch.equal(attend(case, options), plain)


def test_no_kernel_is_replaced(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(str(checkpoint("gemma2")), "float16", "cpu")
    check_kernels(model, 16)
    assert replaced_kernels() == [], caplog.text


def test_kernels_write_the_text_of_plain_pytorch(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("gemma3")
    assert generate(build_runner(path, "float32"), PROMPT, 2) == generate(
        build_runner(path), PROMPT, 2
    )


@pytest.mark.parametrize("sampling", SAMPLING[::9], ids=str)
def test_choices_are_those_of_plain_pytorch(sampling: dict[str, Any]) -> None:
    assert CHOOSE.cuda_kernel is not None
    for vocab_size, dtype in ((3, torch.float16), (1100, torch.float32)):
        assert_as_plain(CHOOSE.cuda_kernel, vocab_size, dtype, 4, sampling)


def test_the_largest_logits_are_those_of_plain_pytorch() -> None:
    logits = torch.randn(7, 5000).round(decimals=1)
    logits[1], logits[2, 3], logits[3, 4999] = float("-inf"), float("inf"), float("nan")
    logits[4, [17, 4200]] = float("nan")
    logits[5] = 3.0
    assert PICK.cuda_kernel is not None
    for dtype in (torch.float32, torch.float16):
        for found, wanted in zip(
            PICK.cuda_kernel(logits.to(dtype)), pick(logits.to(dtype)), strict=True
        ):
            assert torch.equal(found.nan_to_num(7e4), wanted.nan_to_num(7e4))
