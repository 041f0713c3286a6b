"""The kernels compute what plain PyTorch does, in Triton's interpreter, and compile for GPUs."""

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
from optimist_worker.core.batch.flat_batch import PassSize
from optimist_worker.core.batch.window_table import NUM_INDICES
from optimist_worker.core.drafts import Drafts, no_drafts
from optimist_worker.core.lookup import Looking, Predictions
from optimist_worker.model.linear import PlainLinear
from optimist_worker.model.operations import Heads, Norm
from tests.worker.attention.attention_case import TREE, BatchRow, Shape, make_case
from tests.worker.tables import make_tables

triton = pytest.importorskip("triton", reason="Triton is only for Linux on x86-64")

from optimist_worker.core import lookup_kernel, write_kernel  # noqa: E402
from optimist_worker.core.acceptance import choice_kernel, verdict_kernel  # noqa: E402
from optimist_worker.core.attention import kv_write, launch  # noqa: E402
from optimist_worker.core.batch import row_kernels, window_kernel  # noqa: E402
from optimist_worker.model import kernels  # noqa: E402

ROOT = Path(__file__).parents[3]
SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Shared memory of a program on A100, L4 and 4090, and H100, by what they are compiled for."""
ALL_GPUS = pytest.mark.parametrize("compilers", SHARED_BYTES, indirect=True)
LLAMA_8B = Shape(32, 8, 128, 128)
GEMMA_2 = Shape(8, 4, 256, 256)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interpreted", "interpreted_steps"])
def test_kernels_compute_as_plain_pytorch_does_in_the_interpreter(name: str) -> None:
    # The interpreter is chosen when Triton is imported: by a process of its own.
    path = f"tests/worker/cuda_kernels/{name}.py"
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

    def __init__(self, kernel: Any, shared_bytes: int) -> None:
        self.kernel, self.shared_bytes = kernel, shared_bytes
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
            assert self.compiled[-1].metadata.shared <= self.shared_bytes

        return compile_launch


OF_STEPS = {
    "write_run": write_kernel,
    "set_window": window_kernel,
    "draft_window": window_kernel,
    "merge_row": window_kernel,
    "look_up_row": lookup_kernel,
    "fit_row": row_kernels,
    "lay_out_row": row_kernels,
    "settle_row": row_kernels,
    "move_row": row_kernels,
    "judge_row": verdict_kernel,
}
"""Kernels around the layers."""
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
    "pick_token": choice_kernel,
    **OF_STEPS,
}


@pytest.fixture
def compilers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> dict[str, Compiler]:
    """The kernels, which what launches them then compiles, for an H100 if nothing else is said."""
    target = getattr(request, "param", 90)
    gpu = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: triton.backends.compiler.GPUTarget("cuda", target, 32),
    )
    most = SHARED_BYTES[target]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", gpu)
    monkeypatch.setattr(launch, "_shared_bytes", lambda device: most)
    launch.choose_tiling.cache_clear()
    found = {name: Compiler(getattr(module, name), most) for name, module in KERNELS.items()}
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
    choice_kernel.choose(logits, slots, slots, table, table.needs([0, 0]))
    choice_kernel.pick(logits)
    expected = {"find_cuts": 1, "choose_of_part": 1, "choose_token": 1, "pick_token": 1}
    assert count_compiled(compilers) == expected


@pytest.mark.slow
@ALL_GPUS
@pytest.mark.parametrize("dim", [128, 256])
def test_attention_fits_into_shared_memory(compilers: dict[str, Compiler], dim: int) -> None:
    case = make_case([BatchRow(20, 100, TREE)], Shape(8, 4, dim, dim), torch.bfloat16)
    batch = case.batch(bounds=(2048, 4096))
    options = {"window": None, "softcap": None, "sinks": None}
    launch.attend(case.query, case.pool.keys[0], case.pool.values[0], batch, scale=0.1, **options)
    assert count_compiled(compilers) == {"attend_parts": 2, "combine_parts": 1}


@pytest.mark.slow
@ALL_GPUS
def test_steps_compile(compilers: dict[str, Compiler]) -> None:
    """What is around the layers; nothing of it runs."""
    tables, slots = make_tables(), torch.tensor([0, 1, 4])
    table, windows = tables.table, tables.windows
    packed = torch.zeros(10 + 8, dtype=torch.int32)
    write_kernel.write_state(packed, [table.columns[:4, 0]])
    layouts = torch.zeros((1, 4 * NUM_INDICES + 3), dtype=torch.int64)
    window_kernel.set_windows(layouts, [], windows)
    rows = row_kernels.fit_rows(torch.zeros((3, 3), dtype=torch.int64), table)
    for has_trees in (False, True):
        from_windows = window_kernel.draft_windows(
            slots, rows.limits, rows.drafter_limits, windows, 9, has_trees=has_trees
        )
        looking = Looking(slots, rows.columns, rows.limits, 9, 40)
        predictions = Predictions(table)
        found = lookup_kernel.look_up(table.token_ids, looking, slots, predictions)
        looked_up = Drafts(found.token_ids, found.num_tokens, slots[:1].expand(3))
        looked_up.positions = found.positions
        windowed = from_windows.drafts
        drafts = window_kernel.merge_drafts(windowed.num_tokens, windowed, looked_up)
        size = PassSize(64, 32, 16, 40)
        layout = row_kernels.lay_out_rows(slots, table, rows, drafts, size)
        largest = torch.zeros(32, dtype=torch.bfloat16)
        left = largest if has_trees else None
        verdict = verdict_kernel.reach_verdict(
            layout.next_slots, largest, left, layout.nodes, drafts
        )
        indices = from_windows.indices
        row_kernels.settle(slots, table, windows, rows, drafts, indices, verdict, None)
        if verdict.path is not None:
            accepted = verdict.num_accepted
            row_kernels.move_path(verdict.path, accepted, slots, rows.ends, table, tables.pool)
    without = no_drafts(3, slots.device)
    row_kernels.lay_out_rows(slots, table, rows, without, PassSize(4, 4, 1, 40))
    assert {name for name, each in compilers.items() if each.compiled} == set(OF_STEPS)
