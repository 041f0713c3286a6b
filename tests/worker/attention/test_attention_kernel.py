"""The kernel computes what SDPA does, in Triton's interpreter, and compiles for Hopper."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.attention.attention_case import TREE, BatchRow, Shape, make_case

triton = pytest.importorskip("triton", reason="Triton is only for Linux on x86-64")

ROOT = Path(__file__).parents[3]
INTERPRETED = ("test_attention", "interpreted_attention_kernel")
SHARED_BYTES = 227 * 1024
LLAMA_8B = Shape(32, 8, 128, 128)
LLAMA_1B = Shape(32, 8, 64, 64)
GEMMA_2 = Shape(8, 4, 256, 256)


@pytest.mark.slow
def test_kernel_attends_as_sdpa_does_in_the_interpreter() -> None:
    # The interpreter is chosen when Triton is imported: by a process of its own.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    files = [f"{Path(__file__).parent}/{name}.py" for name in INTERPRETED]
    run = subprocess.run(
        [*command, *files],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


class Hopper:
    """Says that there is an H100, as far as compiling needs to know."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


class Compiler:
    """Stands in for a kernel: compiles what would be launched, and keeps it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def compile_launch(*arguments: Any, **options: Any) -> None:
            self.compiled.append(self.kernel.warmup(*arguments, grid=grid, **options))

        return compile_launch


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Compiler]:
    """The two kernels, which a call of attend() then compiles for an H100."""
    from optimist_worker.core.attention import launch as attention_launch

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    monkeypatch.setattr(attention_launch, "_shared_bytes", lambda device: SHARED_BYTES)
    compilers = []
    for name in ("attend_parts", "combine_parts"):
        compilers.append(Compiler(getattr(attention_launch, name)))
        monkeypatch.setattr(attention_launch, name, compilers[-1])
    return compilers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype", "tree", "num_queries", "num_launches", "options"),
    [
        (LLAMA_8B, torch.bfloat16, (), 1, 1, {}),
        (LLAMA_8B, torch.bfloat16, TREE, 2048, 2, {}),
        (LLAMA_1B, torch.bfloat16, TREE, 16, 1, {"window": 128, "sinks": torch.zeros(32)}),
        (GEMMA_2, torch.float16, (), 2048, 2, {"window": 4096, "softcap": 50.0}),
        (LLAMA_8B, torch.float32, TREE, 64, 1, {}),
        (Shape(32, 8, 96, 80), torch.bfloat16, (), 2, 1, {}),
    ],
)
def test_kernel_compiles_for_hopper(
    compilers: list[Compiler],
    shape: Shape,
    dtype: torch.dtype,
    tree: tuple[int, ...],
    num_queries: int,
    num_launches: int,
    options: dict[str, Any],
) -> None:
    from optimist_worker.core.attention import launch as attention_launch

    case = make_case([BatchRow(20, 100 if num_queries > 64 else 1, tree)], shape, dtype)
    options = {"window": None, "softcap": None, "sinks": None, **options}
    attention_launch.attend(
        case.query,
        case.pool.keys[0],
        case.pool.values[0],
        case.batch(bounds=(num_queries, 4096)),
        scale=0.1,
        **options,
    )
    attend, combine = compilers
    assert len(attend.compiled) == num_launches
    assert len(combine.compiled) == 1
    for kernel in (*attend.compiled, *combine.compiled):
        assert "cubin" in kernel.asm
        assert kernel.metadata.shared <= SHARED_BYTES


@pytest.mark.slow
def test_writing_compiles_for_hopper(
    compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    from optimist_worker.core.attention import kv_write

    compiler = Compiler(kv_write.write_token)
    monkeypatch.setattr(kv_write, "write_token", compiler)
    case = make_case([BatchRow(20, 3)], LLAMA_8B, torch.bfloat16)
    new = torch.zeros(1, 3, 8, 128, dtype=torch.bfloat16).transpose(1, 2)
    kv_write.write(new, new, case.pool.keys[0], case.pool.values[0], torch.tensor([1, 2, 3]))
    assert "cubin" in compiler.compiled[0].asm
    # Sixteen bytes at a time.
    assert "st.global.v4" in compiler.compiled[0].asm["ptx"]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 192, 256, 576])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 16, 71])
def test_tiles_hold_a_group_and_are_powers_of_2(group: int, dim: int, itemsize: int) -> None:
    from optimist_worker.core.attention.launch import choose_tiling

    tiling = choose_tiling(group, dim, dim, itemsize, SHARED_BYTES)
    heights = (tiling.decode_m, tiling.verify_m, tiling.prefill_m)
    assert min(heights) >= group
    assert list(heights[:2]) == sorted(heights[:2])
    for side in (*heights, tiling.block_n):
        assert side >= 16
        assert side & (side - 1) == 0
    # Parts begin at multiples of a step, whatever their number.
    assert tiling.decode_part % tiling.block_n == tiling.verify_part % tiling.block_n == 0
