"""Kernels of decoder layers run in Triton's interpreter, and compile for Hopper."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.activations import GELUTanh

from optimist_worker.model.linear import PlainLinear
from optimist_worker.model.operations import Heads, Norm
from tests.worker.attention.test_attention_kernel import Compiler, Hopper

triton = pytest.importorskip("triton", reason="Triton is only for Linux on x86-64")


@pytest.mark.slow
def test_kernels_compute_as_plain_pytorch_does_in_the_interpreter() -> None:
    # The interpreter is chosen when Triton is imported: by a process of its own.
    path = Path(__file__).with_name("interpreted_kernels.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Compiler]:
    """The kernels, which what launches them then compiles for an H100."""
    from optimist_worker.model import kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    found = {}
    for name in ("norm_token", "rotate_head", "gate_tile"):
        found[name] = Compiler(getattr(kernels, name))
        monkeypatch.setattr(kernels, name, found[name])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("has_norms", [False, True])
def test_kernels_compile_for_hopper(
    compilers: dict[str, Compiler], dtype: torch.dtype, *, has_norms: bool
) -> None:
    from optimist_worker.model import kernels

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    outer = Norm(torch.zeros(4096, dtype=torch.float32 if has_norms else dtype), 1e-5)
    inner = outer if has_norms else None
    linear = PlainLinear(zeros(4096, 64), None)
    kernels.norm(zeros(3, 4096), outer)
    kernels.add_norm(zeros(3, 64), linear, zeros(3, 4096), inner, outer)
    kernels.add(zeros(3, 64), linear, zeros(3, 4096), inner)
    head_norm = Norm(zeros(128), 1e-6) if has_norms else None
    kernels.rotate_and_write(
        zeros(3, 48, 128),
        zeros(1, 3, 128),
        zeros(1, 3, 128),
        Heads(32, 8, head_norm, head_norm),
        zeros(64, 8, 128),
        zeros(64, 8, 128),
        torch.tensor([1, 2, 3]),
    )
    activate: Any = GELUTanh() if has_norms else nn.SiLU()
    kernels.gate(zeros(3, 2 * 14336), activate)
    numbers = {name: len(compiler.compiled) for name, compiler in compilers.items()}
    assert numbers == {"norm_token": 3 if has_norms else 2, "rotate_head": 1, "gate_tile": 1}
    for compiler in compilers.values():
        assert all("cubin" in kernel.asm for kernel in compiler.compiled)
