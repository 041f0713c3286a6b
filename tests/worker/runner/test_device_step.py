"""The step on a device that the host must not wait for, traced without one.

On PyTorch's meta device operations have shapes and no data. So whatever a captured step may not do
shows there: reading a value, a size that depends on data, a tensor made on the host, tensors of two
devices in one operation.
"""

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.attention import paged_attention
from optimist_worker.core.batch.host_view import HeldSlot, StepBounds, find_bounds
from optimist_worker.core.batch.logprobs import LogprobTargets
from optimist_worker.core.batch.step_sizes import StepSizes
from optimist_worker.core.plan import PlannedRow
from optimist_worker.drafters.drafter import Drafter
from optimist_worker.drafters.guarded import GuardedDrafter
from optimist_worker.drafters.network import DraftKV, DraftModelNetwork, EagleNetwork
from optimist_worker.drafters.network_drafter import AutoregressiveDrafter, MedusaDrafter
from optimist_worker.drafters.ngram import NgramDrafter
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.execution.step import Step, Stopwatch
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import FeatureTap, Model, load_model
from tests.worker.drafters.drafting import SHAPES, random_eagle, random_medusa
from tests.worker.step import SIZES

META = torch.device("meta")
KNOWN, DRAFTS = [1, 1, 40, 1], [8, 0, 0, 3]
"""Two rows with drafts, one that decodes, and a chunk of a prompt."""
MANNERS = {
    "greedy": SamplingParams(),
    "cut": SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05),
    "penalized": SamplingParams(repetition_penalty=1.2, logit_bias={3: 1.0}),
}
_ATEN = torch.ops.aten
_READS = {_ATEN._local_scalar_dense.default, _ATEN.equal.default, _ATEN.is_nonzero.default}
_SIZED_BY_DATA = {
    *(_ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN.repeat_interleave.Tensor),
    *(_ATEN._unique2.default, _ATEN.bincount.default),
}
_INDEXING = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default}
_FROM_HOST = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.Tensor.pin_memory)


class CaptureError(Exception):
    """An operation that a captured step may not have."""


class NothingFromHost(TorchFunctionMode):
    """Refuses tensors that are made from the host's memory, which a replay would not read again."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _FROM_HOST:
            raise CaptureError(f"{func} takes what the host has")
        return func(*args, **(kwargs or {}))


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that wait for the device, or that a CUDA graph cannot hold."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.num_operations += 1
        kwargs = kwargs or {}
        if func in _READS:
            raise CaptureError(f"{func} reads a value")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_masked = func in _INDEXING and torch.bool in {getattr(i, "dtype", None) for i in args[1]}
        if func in _SIZED_BY_DATA or is_masked:
            raise CaptureError(f"{func} has a size that depends on data")
        result = func(*args, **kwargs)
        tensors += [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        if devices - {"meta"}:
            raise CaptureError(f"{func} has tensors on {sorted(devices)}")
        return result


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """Has the shape and nothing else of attention, which is tested by itself."""
    return query.new_empty((1, query.shape[2], query.shape[1], values.shape[2]))


@pytest.fixture(scope="module")
def target(llama_path: Path) -> Model:
    return load_model(str(llama_path), "float32", "cpu")


@pytest.fixture(scope="module")
def shapeless(target: Model) -> Model:
    """The target without data."""
    module = copy.deepcopy(target.module).to(META)
    return dataclasses.replace(target, module=module, device=META)


@pytest.fixture(autouse=True)
def _attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention.ATTEND, "plain", _attend)


@dataclasses.dataclass
class Parts:
    """A step, and all that has to keep its address between steps."""

    step: Step
    model: Model
    state: DeviceState
    keepers: list[Any]
    tap: FeatureTap | None

    @property
    def addresses(self) -> list[int]:
        lists = [list(vars(keeper).values()) for keeper in self.keepers]
        return [id(leaf) for leaf in tree_leaves(lists) if isinstance(leaf, torch.Tensor)]


def _make(
    target: Model, shapeless: Model, way: str, shape: DraftShape, rule: AcceptanceRule
) -> Parts:
    # Of its own, because a tap hooks into it.
    model = dataclasses.replace(shapeless, module=copy.deepcopy(shapeless.module))
    state = DeviceState(model, SIZES)
    keepers: list[Any] = [state.pool, state.table, state.windows, state.sampling]
    drafter: Drafter | None = None
    tap = FeatureTap(model.module, None) if way in ("medusa", "eagle") else None
    if way == "medusa":
        heads = random_medusa(target).float().to(META)
        drafter = MedusaDrafter(heads, state.table, shape, state.sampling, torch.float32, rule)
        keepers.append(drafter)
    elif way == "ngram":
        drafter = GuardedDrafter(NgramDrafter(state.table, 64), state.table)
        keepers += [drafter, drafter.guarded]
    elif way != "none":
        network: EagleNetwork | DraftModelNetwork
        if way == "eagle":
            head = random_eagle(target).float().to(META)
            source, network = DraftSource.EAGLE, EagleNetwork(head, state.table, torch.float32)
        else:
            kv: DraftKV = "discard" if way == "discard" else "keep_and_rollback"
            network = DraftModelNetwork(shapeless, state.table, target.vocab_size, 2048, kv)
            source = DraftSource.DRAFT_MODEL
        keepers += [network, network.pool]
        drafter = AutoregressiveDrafter(source, network, shape, state.sampling, rule)
    return Parts(Step(model, state, drafter, tap, rule), model, state, keepers, tap)


def _bounds(
    state: DeviceState,
    manner: str,
    *,
    known: Sequence[int] = KNOWN,
    drafts: Sequence[int] = DRAFTS,
    has_trees: bool,
) -> StepBounds:
    for slot in range(len(known)):
        state.sampling.set(slot, MANNERS[manner])
    rows = [PlannedRow(slot, *row, []) for slot, row in enumerate(zip(known, drafts, strict=True))]
    least = 9 if manner == "penalized" else 0
    held = [HeldSlot("", 0, 128, None, num_unseen=5, min_length=least) for _ in known]
    needs = state.sampling.needs(list(range(len(known))))
    bounds = dataclasses.replace(
        find_bounds(rows, held, 1, needs), uses_windows=True, has_trees=has_trees
    )
    sizes = StepSizes(SIZES.max_num_batched_tokens, state.sampling.vocab_size, has_network=True)
    return sizes.size_of(bounds)


def _trace(
    parts: Parts, manner: str, *, has_trees: bool = False, wanted: LogprobTargets | None = None
) -> torch.Tensor | None:
    """Runs a step and looks at the shape of its result; returns log-probabilities."""
    bounds = _bounds(parts.state, manner, has_trees=has_trees)
    columns = torch.empty((3, bounds.num_rows), dtype=torch.int64, device=META)
    addresses = parts.addresses
    assert len(addresses) > 10
    with torch.inference_mode(), NothingFromHost(), Capture() as capture:
        packed, scored = parts.step.run(
            columns, bounds, Stopwatch(), Masks("", parts.model), wanted
        )
    assert capture.num_operations > 100
    assert packed.device == META
    assert packed.shape[0] == bounds.num_rows
    assert packed.shape[1] > 10
    assert parts.addresses == addresses
    # A further step would be given the features of this one.
    assert parts.tap is None or not parts.tap._parts
    return scored


COUPLED, REJECTION = AcceptanceRule


@pytest.mark.parametrize(
    ("way", "shape", "rule", "manner", "has_trees"),
    [
        ("none", "chain", COUPLED, "greedy", False),
        ("none", "chain", COUPLED, "cut", True),
        ("none", "chain", COUPLED, "penalized", True),
        ("none", "chain", REJECTION, "penalized", True),
        ("draft_model", "chain", COUPLED, "cut", True),
        ("draft_model", "fixed", REJECTION, "cut", False),
        ("draft_model", "dynamic", REJECTION, "cut", False),
        ("discard", "dynamic", COUPLED, "greedy", False),
        ("medusa", "fixed", COUPLED, "cut", False),
        ("medusa", "dynamic", COUPLED, "greedy", True),
        ("eagle", "fixed", COUPLED, "greedy", True),
        ("eagle", "dynamic", COUPLED, "cut", False),
    ],
)
def test_a_step_waits_for_nothing(
    target: Model,
    shapeless: Model,
    way: str,
    shape: str,
    rule: AcceptanceRule,
    manner: str,
    has_trees: bool,
) -> None:
    parts = _make(target, shapeless, way, SHAPES[shape], rule)
    _trace(parts, manner, has_trees=has_trees)


@pytest.mark.parametrize(("has_trees", "rule"), [(False, COUPLED), (True, REJECTION)])
def test_a_step_that_reports_logprobs_waits_for_nothing(
    target: Model, shapeless: Model, has_trees: bool, rule: AcceptanceRule
) -> None:
    parts = _make(target, shapeless, "none", SHAPES["chain"], rule)
    rows, prompt_rows, offsets = (
        torch.empty(number, dtype=torch.int64, device=META) for number in (3, 40, 40)
    )
    wanted = LogprobTargets(rows, prompt_rows, offsets, num_candidates=20)
    scored = _trace(parts, "cut", has_trees=has_trees, wanted=wanted)
    assert scored is not None
    assert scored.shape == (3 * (1 + 8) + 40, 1 + 2 * 20)
