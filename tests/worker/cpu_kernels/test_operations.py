"""The kernels compute what plain PyTorch does, in each instruction set that this machine has."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from optimist_worker.core.operation import Operation
from optimist_worker.cpu_kernels import build
from optimist_worker.model.kernel_check import OPERATIONS, check_kernels, replaced_kernels
from optimist_worker.model.model import load_model
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12]
kernels = build.load()
pytestmark = pytest.mark.skipif(kernels is None, reason="no C++ compiler, or no CPU for kernels")


@pytest.fixture(params=build.TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[None]:
    assert kernels is not None
    if not kernels.use(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    yield
    build.use_fastest(kernels)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
@pytest.mark.usefixtures("target")
def test_no_kernel_is_replaced(
    family: str, dtype: str, checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    check_kernels(load_model(str(checkpoint(family)), dtype, "cpu"), 16)
    assert replaced_kernels() == [], caplog.text


def test_kernels_of_the_cpu() -> None:
    numbers = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.bfloat16, torch.float64)}
    found = {
        dtype: {each.name for each in OPERATIONS if each.kernel_for(sample) is not None}
        for dtype, sample in numbers.items()
    }
    expected = {"attention", "norm", "rotate_and_write", "gate"}
    assert found == {torch.bfloat16: expected, torch.float64: set()}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_kernels_write_the_text_of_plain_pytorch(
    family: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = generate(build_runner(checkpoint(family), "float32"), PROMPT, 12)
    monkeypatch.setattr(Operation, "kernel_for", lambda self, inputs: None)
    assert generate(build_runner(checkpoint(family), "float32"), PROMPT, 12) == text
