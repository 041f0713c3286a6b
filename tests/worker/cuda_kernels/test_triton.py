"""The kernels compute what plain PyTorch does, in Triton's interpreter, and compile for Hopper."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers.activations import GELUTanh

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.model.linear import PlainLinear
from optimist_worker.model.operations import Heads, Norm
from tests.worker.attention.attention_case import TREE, BatchRow, Shape, make_case

triton = pytest.importorskip("triton", reason="Triton is only for Linux on x86-64")

from optimist_worker.core.acceptance import choice_kernel  # noqa: E402
from optimist_worker.core.attention import kv_write, launch  # noqa: E402
from optimist_worker.model import kernels  # noqa: E402

ROOT = Path(__file__).parents[3]
SHARED_BYTES = 227 * 1024
HOPPER = SimpleNamespace(
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
    get_current_target=lambda: triton.backends.compiler.GPUTarget("cuda", 90, 32),
)
"""An H100, as far as compiling needs to know."""
LLAMA_8B = Shape(32, 8, 128, 128)
GEMMA_2 = Shape(8, 4, 256, 256)


@pytest.mark.slow
def test_kernels_compute_as_plain_pytorch_does_in_the_interpreter() -> None:
    # The interpreter is chosen when Triton is imported: by a process of its own.
    path = "tests/worker/cuda_kernels/interpreted.py"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


class Compiler:
    """Stands in for a kernel: compiles what would be launched, and keeps it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: list[Any] = []
        self.grids: list[tuple[int, ...]] = []
        self.compiles = True

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)

        def compile_launch(*arguments: Any, **options: Any) -> None:
            if not self.compiles:
                return
            self.compiled.append(self.kernel.warmup(*arguments, grid=grid, **options))
            assert "cubin" in self.compiled[-1].asm
            assert self.compiled[-1].metadata.shared <= SHARED_BYTES

        return compile_launch


KERNELS = {
    "attend_parts": launch,
    "combine_parts": launch,
    "write_token": kv_write,
    "norm_token": kernels,
    "rotate_head": kernels,
    "gate_tile": kernels,
    "find_cuts": choice_kernel,
    "choose_of_part": choice_kernel,
    "choose_token": choice_kernel,
}


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Compiler]:
    """The kernels, which what launches them then compiles for an H100."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", HOPPER)
    monkeypatch.setattr(launch, "_shared_bytes", lambda device: SHARED_BYTES)
    found = {name: Compiler(getattr(module, name)) for name, module in KERNELS.items()}
    for name, module in KERNELS.items():
        monkeypatch.setattr(module, name, found[name])
    return found


def count_compiled(compilers: dict[str, Compiler]) -> dict[str, int]:
    return {name: len(each.compiled) for name, each in compilers.items() if each.compiled}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype", "tree", "num_queries", "num_launches", "options"),
    [
        (LLAMA_8B, torch.bfloat16, TREE, 2048, 2, {}),
        (GEMMA_2, torch.float16, (), 2048, 2, {"window": 4096, "softcap": 50.0}),
        (Shape(32, 8, 96, 80), torch.float32, TREE, 64, 1, {"sinks": torch.zeros(32)}),
    ],
)
def test_attention_compiles_for_hopper(
    compilers: dict[str, Compiler],
    shape: Shape,
    dtype: torch.dtype,
    tree: tuple[int, ...],
    num_queries: int,
    num_launches: int,
    options: dict[str, Any],
) -> None:
    case = make_case([BatchRow(20, 100 if num_queries > 64 else 1, tree)], shape, dtype)
    options = {"window": None, "softcap": None, "sinks": None, **options}
    batch = case.batch(bounds=(num_queries, 4096))
    keys, values = case.pool.keys[0], case.pool.values[0]
    launch.attend(case.query, keys, values, batch, scale=0.1, **options)
    assert count_compiled(compilers) == {"attend_parts": num_launches, "combine_parts": 1}


@pytest.mark.slow
def test_a_window_alone_occupies_a_gpu(compilers: dict[str, Compiler]) -> None:
    """A chain of 127 drafts after 1,024 tokens has a program for each of 132 processors."""
    for compiler in compilers.values():
        compiler.compiles = False
    case = make_case([BatchRow(1024, 128)], LLAMA_8B, torch.bfloat16)
    keys, values = case.pool.keys[0], case.pool.values[0]
    options = {"window": None, "softcap": None, "sinks": None}
    launch.attend(case.query, keys, values, case.batch(), scale=0.1, **options)
    ((num_blocks, num_kv_heads, num_parts),) = compilers["attend_parts"].grids
    # Windows are cut into larger parts than tokens are; the others have nothing to do.
    num_parts = -(-num_parts * launch.DECODE_PART // launch.VERIFY_PART)
    assert num_blocks * num_kv_heads * num_parts > 132


@pytest.mark.slow
def test_writing_compiles_for_hopper(compilers: dict[str, Compiler]) -> None:
    case = make_case([BatchRow(20, 3)], LLAMA_8B, torch.bfloat16)
    new = torch.zeros(1, 3, 8, 128, dtype=torch.bfloat16).transpose(1, 2)
    kv_write.write(new, new, case.pool.keys[0], case.pool.values[0], torch.tensor([1, 2, 3]))
    # Sixteen bytes at a time.
    assert "st.global.v4" in compilers["write_token"].compiled[0].asm["ptx"]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "has_norms"), [(torch.bfloat16, True), (torch.float32, False)])
def test_layers_compile_for_hopper(
    compilers: dict[str, Compiler], dtype: torch.dtype, *, has_norms: bool
) -> None:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    outer = Norm(torch.zeros(4096, dtype=torch.float32 if has_norms else dtype), 1e-5)
    inner = outer if has_norms else None
    linear = PlainLinear(zeros(4096, 64), None)
    kernels.norm(zeros(3, 4096), outer)
    kernels.add_norm(zeros(3, 64), linear, zeros(3, 4096), inner, outer)
    kernels.add(zeros(3, 64), linear, zeros(3, 4096), inner)
    head_norm = Norm(zeros(128), 1e-6) if has_norms else None
    heads = Heads(32, 8, head_norm, head_norm)
    angles, pool = zeros(1, 3, 128), zeros(64, 8, 128)
    kernels.rotate_and_write(
        zeros(3, 48, 128), angles, angles, heads, pool, pool.clone(), torch.tensor([1, 2, 3])
    )
    activate: Any = GELUTanh() if has_norms else nn.SiLU()
    kernels.gate(zeros(3, 2 * 14336), activate)
    expected = {"norm_token": 3 if has_norms else 2, "rotate_head": 1, "gate_tile": 1}
    assert count_compiled(compilers) == expected


@pytest.mark.slow
def test_choices_compile_for_hopper(compilers: dict[str, Compiler]) -> None:
    table = SamplingTable(1, 128256, torch.device("cpu"))
    table.set(0, SamplingParams(temperature=1.0, top_p=0.9))
    slots, logits = torch.tensor([0, 0]), torch.zeros(2, 128256, dtype=torch.bfloat16)
    choice_kernel.choose(logits, slots, table.gather(slots), table.needs([0, 0]))
    assert count_compiled(compilers) == {"find_cuts": 1, "choose_of_part": 1, "choose_token": 1}
