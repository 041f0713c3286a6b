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
from torch.utils._pytree import tree_leaves

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

from tests.worker.cuda_kernels.test_triton import KERNELS, OF_STEPS

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
        result = func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs, result))
        is_there = any(isinstance(leaf, torch.Tensor) and leaf.device == META for leaf in leaves)
        name = func._schema.name.removeprefix("aten::")
        if is_there and not is_view and not name.startswith(_NO_KERNELS):
            self.number += 1
        return result


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
    choice = {"find_cuts", "choose_of_part", "choose_token", "pick_token"}
    others = {"write_token", *choice, *OF_STEPS}
    assert counter.launched - others == set(KERNELS) - others


TREES = {"has_trees": True}
LOOKUP = {"way": "ngram"}


@pytest.mark.parametrize(
    ("manner", "options", "most"),
    [
        ("greedy", {"num_drafts": 0}, {"prepare": 3, "judge": 2, "settle": 1}),
        ("greedy", {}, {"prepare": 3, "judge": 2, "settle": 1}),
        ("cut", {}, {"prepare": 3, "judge": 5, "settle": 1}),
        ("greedy", LOOKUP, {"prepare": 5, "judge": 2, "settle": 1}),
        ("greedy", TREES, {"prepare": 3, "judge": 2, "settle": 2}),
        ("greedy", TREES | LOOKUP, {"prepare": 5, "judge": 2, "settle": 2}),
        ("cut", TREES | LOOKUP, {"prepare": 5, "judge": 5, "settle": 2}),
        ("penalized", {}, {"prepare": 3, "judge": 74, "settle": 1}),
    ],
)
def test_kernels_of_a_step(
    manner: str,
    options: dict[str, Any],
    most: dict[str, int],
    llama_path: Path,
    counter: KernelCounter,
) -> None:
    """Of one row; Llama's own around its layers are embedding, rotary, final norm and logits."""
    _, parts = _count(llama_path, counter, manner, **options)
    assert parts.pop("forward") == 13
    assert parts == most


def test_kernels_of_a_plan(llama_path: Path, counter: KernelCounter) -> None:
    """However much a plan brings, it is a copy to the device and a launch for each part."""
    made = _make_meta(llama_path, "ngram")
    state, drafter = made.state, made.keepers[-2]
    writes = state.table.writes
    with torch.inference_mode(), counter:
        for slot in range(3):
            admission = admit(slot, [1] * 20, predicted_token_ids=[4] * 5, min_length=25)
            state.admit(admission)
            drafter.admit(admission)
        writes.flush()
        assert counter.number == 2
        state.windows.set([WindowUpdate(slot, 0, [1, 2, 3]) for slot in range(3)])
        assert counter.number == 4
        state.table.append_blocks([0, 2], [[1, 2], [3]], [0, 0])
        writes.flush()
        assert counter.number == 6
