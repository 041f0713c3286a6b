"""Compares our kernels with plain PyTorch before the first request, on inputs of a model's shapes.

A kernel that raises or differs is replaced by plain PyTorch in this process: the worker serves,
if slower. It cannot survive a kernel that ends the CUDA context (an illegal address); then the
error names the kernel and the setting that leaves all of them out.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers.activations import GELUTanh

from optimist_common.errors import SetupError, one_line
from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.choice import CHOOSE
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.attention.paged_attention import (
    ATTEND,
    WRITE,
    AttentionBatch,
    KVPool,
    LayerSpec,
)
from optimist_worker.core.operation import Function, Operation
from optimist_worker.core.recurrence.scan import REPLAY, SCAN, DeltaTokens, Updates
from optimist_worker.core.recurrence.walk import Walk, walk_paths, walk_trees
from optimist_worker.model import step_check
from optimist_worker.model.linear import PlainLinear
from optimist_worker.model.model import Model
from optimist_worker.model.operations import (
    ADD,
    ADD_NORM,
    GATE,
    MULTIPLY,
    NORM,
    ROTATE_AND_WRITE,
    Heads,
    Norm,
    make_panels,
)
from optimist_worker.model.rounding import Bits, round_weight

logger = logging.getLogger(__name__)

OPERATIONS = (
    *(WRITE, ATTEND, MULTIPLY, NORM, ADD_NORM, ADD, ROTATE_AND_WRITE, GATE, CHOOSE),
    *(SCAN, REPLAY, *step_check.OPERATIONS),
)
Case = Callable[[Function], list[torch.Tensor]]
"""Calls an implementation with inputs that are always the same, and returns what it computed."""

_MOST_DIFFERENT = {torch.bfloat16: 0.04, torch.float16: 0.01}
"""Difference of two vectors as a share of the longest one; 1e-3 in float32."""
_NUM_TOKENS = 5
_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
)


class BatchRow(NamedTuple):
    """Of a case of attention."""

    num_computed: int
    num_tokens: int
    num_nodes: int = 0
    """Of a binary tree of drafts after the tokens."""

    @property
    def num_queries(self) -> int:
        """Tokens in the pass."""
        return self.num_tokens + self.num_nodes


_BATCHES = (
    [BatchRow(700, 1), BatchRow(9, 1)],
    [BatchRow(300, 8), BatchRow(7, 130)],
    [BatchRow(300, 8), BatchRow(40, 1, 7), BatchRow(7, 140), BatchRow(0, 1)],
)
"""Decoded tokens; a chain and a chunk of a prompt; and a tree. All have several parts of keys."""


@torch.inference_mode()
def check_kernels(model: Model, block_size: int) -> None:
    """Replaces kernels that fail on a model's device, for all models.

    Raises SetupError if the device computes nothing any more after one of them.
    """
    for operation, case in _cases(model, block_size):
        kernel = operation.kernel_for(_sample(model))
        if kernel is not None:
            check(operation, kernel, case, model.dtype, model.device)


def leave_kernels(model: Model) -> None:
    """Replaces all kernels if a model's device has them."""
    for operation in OPERATIONS:
        operation.is_replaced |= operation.kernel_for(_sample(model)) is not None


def replaced_kernels() -> list[str]:
    """Returns the names of the kernels that are replaced."""
    return [operation.name for operation in OPERATIONS if operation.is_replaced]


def _sample(model: Model) -> torch.Tensor:
    return torch.empty(0, dtype=model.dtype, device=model.device)


def check(
    operation: Operation, kernel: Function, case: Case, dtype: torch.dtype, device: torch.device
) -> None:
    """Replaces the kernel of an operation if it raises or differs from plain PyTorch.

    Raises SetupError if the device computes nothing any more.
    """
    wanted = case(operation.plain)
    try:
        fault = _difference(case(kernel), wanted, _MOST_DIFFERENT.get(dtype, 1e-3))
    except Exception as error:
        # Triton's compiler and driver raise whatever they like.
        _check_device(operation.name, device)
        fault = one_line(error)
    if fault is not None:
        operation.is_replaced = True
        logger.warning(
            "plain PyTorch replaces the kernel %s, which is slower: %s", operation.name, fault
        )


def _difference(found: list[torch.Tensor], wanted: list[torch.Tensor], most: float) -> str | None:
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape:
            return f"its result has shape {tuple(one.shape)}, not {tuple(other.shape)}"
        if not one.is_floating_point():
            if not torch.equal(one, other):
                return "its whole numbers are others"
            continue
        # Vector by vector, so that a wrong one does not drown among right ones.
        longest = float(other.double().norm(dim=-1).max())
        difference = float((one.double() - other.double()).norm(dim=-1).max())
        if not difference <= most * longest:
            return f"it differs by {difference:.3g} of {longest:.3g}"
    return None


def _check_device(name: str, device: torch.device) -> None:
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise SetupError(
            f"--kernels: {device} computes nothing any more after the kernel {name} "
            f"({one_line(error)}); start with --no-kernels"
        ) from None


def _cases(model: Model, block_size: int) -> Iterator[tuple[Operation, Case]]:
    config = model.module.config.get_text_config()
    num_heads = config.num_attention_heads
    group = num_heads // (getattr(config, "num_key_value_heads", None) or num_heads)
    draw = _Draw(model.dtype, model.device)
    windows = {None, getattr(config, "sliding_window", None)}
    softcap = getattr(config, "attn_logit_softcapping", None)
    has_sinks = any(name.endswith("sinks") for name, _ in model.module.named_parameters())
    for spec in dict.fromkeys(spec for spec in model.layers if spec.num_kv_heads):
        heads = group * spec.num_kv_heads
        yield WRITE, partial(_write, draw, spec)
        for window in windows:
            options = {
                "scale": spec.key_dim**-0.5,
                "window": window,
                "softcap": softcap,
                "sinks": draw(heads) if has_sinks else None,
            }
            for rows in _BATCHES:
                yield ATTEND, partial(_attend, draw, spec, heads, block_size, rows, options)
        if spec.key_dim == spec.value_dim and spec.key_dim % 2 == 0:
            for has_norms in (False, True):
                yield ROTATE_AND_WRITE, partial(_rotate_and_write, draw, spec, heads, has_norms)
    size = config.hidden_size
    all_bits: list[Bits | None] = [None, 8, 4] if model.dtype == torch.bfloat16 else [None]
    for bits, num_rows in product(all_bits, (_NUM_TOKENS, 40)):
        sizes = -(-size // 32) * 32, 3 * size + 2, num_rows
        yield MULTIPLY, partial(_multiply, draw, *sizes, bits)
    for dtype in {model.dtype, torch.float32}:
        outer = Norm(1 + 0.1 * draw(size, seed=7).to(dtype), 1e-6)
        yield NORM, partial(_norm, draw, outer)
        for inner in (None, outer):
            yield ADD_NORM, partial(_add, draw, inner, outer)
            yield ADD, partial(_add, draw, inner, None)
    width = getattr(config, "intermediate_size", None) or 4 * size
    for activate in (nn.SiLU(), GELUTanh()):
        yield GATE, partial(_gate, draw, 2 * width, activate)
    yield from _delta_rules(model)
    yield from step_check.step_cases(model.device, model.dtype, model.vocab_size)
    yield from ((CHOOSE, partial(_choose, draw, model.vocab_size, each)) for each in _SAMPLING)


class _Draw:
    """Draws normal numbers that follow from shape and seed alone."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device

    def __call__(self, *shape: int, seed: int = 0) -> torch.Tensor:
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return numbers.to(self.device, self.dtype)

    def index(self, values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)


def _multiply(
    draw: _Draw, depth: int, width: int, num_rows: int, bits: Bits | None, run: Function
) -> list[torch.Tensor]:
    weight = draw(width, depth, seed=1) / depth**0.5
    panels = make_panels(weight) if bits is None else round_weight(weight, bits).panels
    residual = draw(num_rows, width, seed=2)
    return [run(draw(num_rows, depth), panels, draw(width, seed=3).float(), residual)]


def _norm(draw: _Draw, outer: Norm, run: Function) -> list[torch.Tensor]:
    return [run(draw(_NUM_TOKENS, len(outer.weight)), outer)]


def _add(draw: _Draw, inner: Norm | None, outer: Norm | None, run: Function) -> list[torch.Tensor]:
    size = len((inner or outer or Norm(draw(64), 0.0)).weight)
    linear = PlainLinear(draw(size, 64, seed=1) / 8, None)
    arguments = (draw(_NUM_TOKENS, 64), linear, draw(_NUM_TOKENS, size, seed=2), inner)
    return [run(*arguments)] if outer is None else list(run(*arguments, outer))


def _gate(draw: _Draw, width: int, activate: nn.Module, run: Function) -> list[Any]:
    return [run(draw(_NUM_TOKENS, width), activate)]


def _choose(
    draw: _Draw, vocab_size: int, shared: dict[str, Any], run: Function
) -> list[torch.Tensor]:
    table = SamplingTable(_NUM_TOKENS, vocab_size, draw.device)
    for slot in range(_NUM_TOKENS):
        table.set(slot, SamplingParams(seed=slot, **(shared if slot else {"temperature": 0.0})))
    table.writes.flush()
    slots = draw.index(range(_NUM_TOKENS))
    needs = table.needs(list(range(_NUM_TOKENS)))
    logits = 3 * draw(_NUM_TOKENS, vocab_size)
    token_ids = run(logits, 1000 * slots, slots, table, needs)
    # A vector for each, so that a token differs from its neighbour as from any other.
    return [torch.nn.functional.one_hot(token_ids % 97, 97).float()]


def _delta_rules(model: Model) -> Iterator[tuple[Operation, Case]]:
    wide = _Draw(torch.promote_types(model.dtype, torch.float32), model.device)
    # Of two slots one after the other; the tree's last node goes on from the slot's state again.
    slots, lengths = np.array([2, 0]), np.array([_NUM_TOKENS, 1])
    firsts, parents = np.array([0, _NUM_TOKENS]), [[-1, 0, 0, 2, -1], [-1]]
    path = walk_paths(slots, firsts, lengths, None, model.device)
    tree = walk_trees(slots, firsts, lengths, parents, model.device)
    for spec in dict.fromkeys(model.states.values()):
        if spec.heads is not None:
            yield SCAN, partial(_scan, wide, spec.heads, path, True)
            yield SCAN, partial(_scan, wide, spec.heads, tree, False)
            yield REPLAY, partial(_replay, wide, spec.heads, path)


def _scan(
    draw: _Draw, heads: tuple[int, int, int], walk: Walk, moves: bool, run: Function
) -> list[torch.Tensor]:
    number, keys, values = heads
    matrices, size = draw(3, *heads), len(walk.tokens)
    query, key = torch.nn.functional.normalize(draw(2, size, number, keys, seed=1), dim=-1)
    decays, rates = draw(2, size, number, seed=2).sigmoid()
    tokens = DeltaTokens(query, key, draw(size, number, values, seed=3), decays, rates)
    return [*run(matrices, tokens, walk, moves=moves), matrices]


def _replay(
    draw: _Draw, heads: tuple[int, int, int], walk: Walk, run: Function
) -> list[torch.Tensor]:
    number, keys, values = heads
    matrices, size = draw(2, 3, *heads), len(walk.tokens)
    unit = torch.nn.functional.normalize(draw(2, size, number, keys, seed=1), dim=-1)
    decays = draw(2, size, number, seed=2).sigmoid()
    run(matrices, Updates(unit, draw(2, size, number, values, seed=3), decays), walk)
    return [matrices]


def _write(draw: _Draw, spec: LayerSpec, run: Function) -> list[torch.Tensor]:
    keys, values = _memory(draw, spec, 16)
    new = (
        draw(1, _NUM_TOKENS, spec.num_kv_heads, dim, seed=dim).transpose(1, 2)
        for dim in (spec.key_dim, spec.value_dim)
    )
    run(*new, keys, values, draw.index([9, 3, 15, 0, 7]))
    return [keys, values]


def _rotate_and_write(
    draw: _Draw, spec: LayerSpec, num_heads: int, has_norms: bool, run: Function
) -> list[torch.Tensor]:
    keys, values = _memory(draw, spec, 16)
    dim = spec.key_dim
    angles = draw(1, _NUM_TOKENS, dim // 2, seed=5).repeat(1, 1, 2)
    norms = [Norm(1 + 0.1 * draw(dim, seed=seed), 1e-6) if has_norms else None for seed in (3, 4)]
    query = run(
        draw(_NUM_TOKENS, num_heads + 2 * spec.num_kv_heads, dim),
        angles.cos(),
        angles.sin(),
        Heads(num_heads, spec.num_kv_heads, *norms),
        keys,
        values,
        draw.index([9, 3, 15, 0, 7]),
    )
    return [query, keys, values]


def _memory(draw: _Draw, spec: LayerSpec, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        draw(size, spec.num_kv_heads, spec.key_dim, seed=11),
        draw(size, spec.num_kv_heads, spec.value_dim, seed=12),
    )


def _attend(
    draw: _Draw,
    spec: LayerSpec,
    num_heads: int,
    block_size: int,
    rows: list[BatchRow],
    options: dict[str, Any],
    run: Function,
) -> list[torch.Tensor]:
    batch = _batch(draw, spec, block_size, rows)
    query = draw(1, len(batch.positions), num_heads, spec.key_dim).transpose(1, 2)
    return [run(query, batch.pool.keys[0], batch.pool.values[0], batch, **options)]


def _batch(draw: _Draw, spec: LayerSpec, block_size: int, rows: list[BatchRow]) -> AttentionBatch:
    """Returns rows whose blocks lie in reverse order, in a pool of random keys and values."""
    lengths = [row.num_computed + row.num_queries for row in rows]
    width = -(-max(lengths) // block_size)
    pool = KVPool([spec], width * len(rows), block_size, draw.dtype, draw.device)
    for memory, drawn in zip(
        (pool.keys[0], pool.values[0]), _memory(draw, spec, len(pool.keys[0])), strict=True
    ):
        memory.copy_(drawn)
    tables = draw.index(reversed(range(width * len(rows)))).view(len(rows), width)
    batch = AttentionBatch.of_rows(pool, [row.num_computed for row in rows], lengths, tables)
    ends = [row.num_computed + row.num_tokens for row in rows]
    batch.tree_starts = draw.index(ends)
    if any(row.num_nodes for row in rows):
        batch.ancestors = torch.zeros_like(batch.positions)
    first = 0
    for row, end in zip(rows, ends, strict=True):
        first += row.num_queries
        paths = [0]
        for node in range(row.num_nodes):
            paths.append(paths[(node + 1) // 2] | 1 << node)
        if batch.ancestors is not None and row.num_nodes:
            nodes = slice(first - row.num_nodes, first)
            batch.ancestors[nodes] = draw.index(paths[1:])
            batch.positions[nodes] = draw.index(end - 1 + path.bit_count() for path in paths[1:])
    return batch
