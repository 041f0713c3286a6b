"""How many kernels a GPU would run for a layer and a step, counted on the meta device.

An operation of PyTorch that computes or copies is one kernel, a launch of Triton another. Bounds
are what was counted when the test was written: who needs more has to raise them here.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.operation import Operation
from optimist_worker.execution.executor import HostStopwatch
from optimist_worker.execution.step import Step
from optimist_worker.model import fused, linear
from optimist_worker.model.grammar import Masks
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model, load_model
from tests.worker.runner.test_device_step import DRAFTS, KNOWN, META, _bounds
from tests.worker.step import SIZES

pytest.importorskip("triton", reason="Triton is only for Linux on x86-64")

_NO_KERNELS = ("empty", "new_empty", "_unsafe_view", "_reshape_alias", "lift_fresh", "detach")


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what would run on a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

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

    def __init__(self, name: str, counter: KernelCounter, names: set[str]) -> None:
        self.name, self.counter, self.names = name, counter, names

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*_: Any, **__: Any) -> None:
            self.counter.number += 1
            self.names.add(self.name)

        return launch


@dataclasses.dataclass
class Counted:
    """Kernels of one step."""

    layers: list[int] = dataclasses.field(default_factory=list)
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    launched: set[str] = dataclasses.field(default_factory=set)
    """Names of Triton's kernels."""


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> tuple[KernelCounter, Counted]:
    """Counts on a meta device that has the kernels."""
    from tests.worker.cuda_kernels.test_triton import KERNELS

    counting, counted = KernelCounter(), Counted()
    for name, module in KERNELS.items():
        monkeypatch.setattr(module, name, Launcher(name, counting, counted.launched))
    monkeypatch.setattr(KERNELS["attend_parts"], "_shared_bytes", lambda device: 227 * 1024)
    monkeypatch.setattr(
        Operation,
        "kernel_for",
        lambda self, inputs: self.cuda_kernel if inputs.device == META else None,
    )
    # What is packed for the CPU cannot lose its data.
    monkeypatch.setattr(linear, "can_pack", lambda dtype: False)
    return counting, counted


def _count(
    path: Path,
    counter: tuple[KernelCounter, Counted],
    manner: str = "greedy",
    *,
    is_fused: bool,
    has_trees: bool = False,
) -> Counted:
    """Counts the kernels of a step of a model in bfloat16."""
    counting, counted = counter
    loaded = load_model(str(path), "bfloat16", "cpu")
    if is_fused:
        fused.fuse(loaded)
    module = copy.deepcopy(loaded.module).to(META)
    model: Model = dataclasses.replace(loaded, module=module, device=META)
    starts: list[int] = []
    for layer in module.model.layers:
        layer.register_forward_pre_hook(lambda *_: starts.append(counting.number))
        layer.register_forward_hook(
            lambda *_: counted.layers.append(counting.number - starts.pop())
        )
    state = DeviceState(model, SIZES)
    step = Step(model, state, None, None, AcceptanceRule.COUPLED, 0.5)
    bounds = _bounds(state, manner, has_trees=has_trees)
    # Enough keys for a second part.
    bounds = dataclasses.replace(bounds, max_num_keys=4096)
    columns = torch.empty((3, bounds.num_rows), dtype=torch.int64, device=META)
    assert len(KNOWN) == len(DRAFTS) == bounds.num_rows

    def note(part: str) -> None:
        counted.parts[part] = counting.number - sum(counted.parts.values())

    watch = HostStopwatch()
    with torch.inference_mode(), counting:
        prepared = step.prepare(columns, bounds, watch)
        note("prepare")
        assert prepared.batch is not None
        logits = model.forward(prepared.batch)
        note("forward")
        verdict, _ = step.judge(prepared, logits, Masks("", model))
        note("judge")
        step.settle(prepared, verdict, watch)
        note("settle")
    return counted


@pytest.mark.parametrize(
    ("family", "most", "before"),
    [("llama", 10, 40), ("qwen2", 10, 40), ("qwen3", 10, 56), ("gemma2", 11, 64)],
)
def test_kernels_of_a_layer(
    family: str,
    most: int,
    before: int,
    checkpoint: Callable[[str], Path],
    counter: tuple[KernelCounter, Counted],
) -> None:
    counted = _count(checkpoint(family), counter, is_fused=True)
    assert set(counted.layers) == {most}
    attention, others = (
        {"attend_parts", "combine_parts"},
        {"norm_token", "rotate_head", "gate_tile"},
    )
    assert counted.launched == attention | others
    counted.layers.clear()
    # transformers' layers, with our attention.
    plain = _count(checkpoint(family), counter, is_fused=False)
    assert set(plain.layers) == {before}


@pytest.mark.parametrize(
    ("manner", "has_trees", "most"),
    [
        ("greedy", False, {"prepare": 83, "judge": 38, "settle": 65}),
        ("cut", False, {"prepare": 83, "judge": 223, "settle": 65}),
        ("greedy", True, {"prepare": 148, "judge": 65, "settle": 89}),
    ],
    ids=["greedy", "sampled", "trees"],
)
def test_kernels_of_a_step(
    manner: str,
    has_trees: bool,
    most: dict[str, int],
    llama_path: Path,
    counter: tuple[KernelCounter, Counted],
) -> None:
    counted = _count(llama_path, counter, manner, is_fused=True, has_trees=has_trees)
    around = {part: number for part, number in counted.parts.items() if part != "forward"}
    assert all(around[part] <= bound for part, bound in most.items()), around
    # Embedding, rotary frequencies, final norm and output matrix.
    assert counted.parts["forward"] - sum(counted.layers) <= 20
