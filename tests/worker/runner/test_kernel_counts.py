"""How many kernels a GPU would run for a layer and a step, counted on the meta device.

An operation of PyTorch that computes or copies is one kernel, a launch of Triton another. Bounds
are what was counted when the test was written: who needs more has to raise them here.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import WindowUpdate
from optimist_worker.execution.step import Stopwatch
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.fused import fuse
from optimist_worker.model.model import load_model
from tests.worker.drafters.drafting import SHAPES
from tests.worker.runner.test_device_step import META, Parts, _bounds, _make
from tests.worker.step import admit

pytest.importorskip("triton", reason="Triton is only for Linux on x86-64")

from tests.worker.cuda_kernels.test_triton import KERNELS

_NO_KERNELS = ("empty", "new_empty", "_unsafe_view", "_reshape_alias", "lift_fresh", "detach")


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what would run on a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0
        self.launched: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # In inference mode, operations that are made of others arrive whole.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        returns = func._schema.returns
        is_view = any(each.alias_info and not each.alias_info.is_write for each in returns)
        if not is_view and not func._schema.name.removeprefix("aten::").startswith(_NO_KERNELS):
            self.number += 1
        return func(*args, **kwargs)


class Launcher:
    """Stands in for a kernel of Triton."""

    def __init__(self, name: str, counter: KernelCounter) -> None:
        self.name, self.counter = name, counter

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launch

    def launch(self, *_: Any, **__: Any) -> None:
        self.counter.number += 1
        self.counter.launched.add(self.name)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> KernelCounter:
    """Counts on a meta device that has the kernels."""
    counter = KernelCounter()
    for name, module in KERNELS.items():
        monkeypatch.setattr(module, name, Launcher(name, counter))
    monkeypatch.setattr(KERNELS["attend_parts"], "_shared_bytes", lambda device: 227 * 1024)
    monkeypatch.setattr(
        Operation,
        "kernel_for",
        lambda self, inputs: self.cuda_kernel if inputs.device == META else None,
    )
    return counter


def _count(
    path: Path,
    counter: KernelCounter,
    manner: str = "greedy",
    *,
    num_drafts: int = 8,
    has_trees: bool = False,
    way: str = "none",
) -> tuple[list[int], dict[str, int]]:
    """Counts the kernels of the layers and of the parts of a step of a model in bfloat16."""
    made = _make_meta(path, way)
    step, model = made.step, made.model
    starts, layers, parts = list[int](), list[int](), dict[str, int]()
    for layer in model.module.model.layers:
        layer.register_forward_pre_hook(lambda *_: starts.append(counter.number))
        layer.register_forward_hook(lambda *_: layers.append(counter.number - starts.pop()))
    # One row, with enough keys for a second part.
    bounds = _bounds(made.state, manner, known=[1], drafts=[num_drafts], has_trees=has_trees)
    bounds = dataclasses.replace(
        bounds, max_num_keys=4096, uses_windows=num_drafts > 0, uses_drafter=way != "none"
    )
    columns = torch.empty((3, bounds.num_rows), dtype=torch.int64, device=META)
    watch = Stopwatch()

    def note(part: str) -> None:
        parts[part] = counter.number - sum(parts.values())

    with torch.inference_mode(), counter:
        prepared = step.prepare(columns, bounds, watch)
        note("prepare")
        assert prepared.batch is not None
        logits = model.forward(prepared.batch)
        note("forward")
        verdict, _ = step.judge(prepared, logits, Masks("", model))
        note("judge")
        step.settle(prepared, verdict, watch)
        note("settle")
    parts["forward"] -= sum(layers)
    return layers, parts


def _make_meta(path: Path, way: str) -> Parts:
    loaded = load_model(str(path), "bfloat16", "cpu")
    fuse(loaded)
    meta = dataclasses.replace(loaded, module=loaded.module.to(META), device=META)
    return _make(meta, meta, way, SHAPES["chain"], AcceptanceRule.COUPLED)


@pytest.mark.parametrize(
    ("family", "most"), [("llama", 10), ("qwen2", 10), ("qwen3", 10), ("gemma2", 11)]
)
def test_kernels_of_a_layer(
    family: str, most: int, checkpoint: Callable[[str], Path], counter: KernelCounter
) -> None:
    layers, _ = _count(checkpoint(family), counter)
    assert set(layers) == {most}
    choice = {"find_cuts", "choose_of_part", "choose_token"}
    assert counter.launched == set(KERNELS) - {"write_token", *choice}


TREES = {"has_trees": True}
LOOKUP = {"way": "ngram"}


@pytest.mark.parametrize(
    ("manner", "options", "most"),
    [
        ("greedy", {"num_drafts": 0}, {}),
        ("greedy", {}, {}),
        ("cut", {}, {}),
        ("greedy", LOOKUP, {}),
        ("greedy", TREES, {}),
        ("greedy", TREES | LOOKUP, {}),
        ("cut", TREES | LOOKUP, {}),
        ("penalized", {}, {}),
    ],
)
def test_kernels_of_a_step(
    manner: str,
    options: dict[str, Any],
    most: dict[str, int],
    llama_path: Path,
    counter: KernelCounter,
) -> None:
    _, parts = _count(llama_path, counter, manner, **options)
    print(manner, options, parts, sum(parts.values()))


def test_kernels_of_a_plan(llama_path: Path, counter: KernelCounter) -> None:
    made = _make_meta(llama_path, "ngram")
    state, drafter = made.state, made.keepers[-1]
    with torch.inference_mode(), counter:
        begin = counter.number
        a = admit(0, [1] * 20)
        state.admit(a)
        drafter.admit(a)
        print("admission", counter.number - begin)
        begin = counter.number
        state.windows.set(WindowUpdate(0, 0, [1, 2, 3]))
        print("window", counter.number - begin)
        begin = counter.number
        state.table.append_blocks([0], [[1, 2]], [0])
        print("blocks", counter.number - begin)
