"""What the device can do at most, and its attention against PyTorch's on random ragged batches."""

import importlib
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gpu_measure.bench import Bench
from gpu_measure.shape import Ceilings
from gpu_measure.slots import BLOCK_SIZE
from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.choice import CHOOSE
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.attention.paged_attention import (
    AttentionBatch,
    KVPool,
    LayerSpec,
    attend_rows,
)
from optimist_worker.core.batch.step_sizes import power_up


def measure_ceilings(bench: Bench) -> None:
    """Copies, reads and multiplies as much as fits easily."""
    size, side = (2**22, 256) if bench.is_tiny else (2**32, 8192)
    if bench.is_cuda:
        size = min(size, torch.cuda.mem_get_info()[0] // 2**22 * 2**20)
    source = torch.randint(0, 100, (size // 2,), dtype=torch.int16, device=bench.device)
    target = torch.empty_like(source)
    copy = bench.seconds(lambda: target.copy_(source), 6)
    values = source.view(torch.int32).view(torch.float32)
    read = bench.seconds(values.sum, 6)
    a, b = (torch.randn(side, side, dtype=bench.dtype, device=bench.device) for _ in range(2))
    product = bench.seconds(lambda: a @ b, 6)
    bench.ceilings = Ceilings(
        bandwidth=max(2 * size / copy, size / read), flops=2 * side**3 / product
    )
    bench.add("copy, bytes read and written", 2 * size / copy / 1e12, "TB/s")
    bench.add("sum, bytes read", size / read / 1e12, "TB/s")
    bench.add(f"product of {side} x {side}", bench.ceilings.flops / 1e12, "TFLOP/s")


def measure_kernel(bench: Bench) -> None:
    """Compares the attention of this device with PyTorch's on random ragged batches."""
    attend = attention_of(bench)
    rng = random.Random(3)  # noqa: S311
    dtypes = [torch.float32] if bench.is_tiny else [bench.dtype, torch.float32]
    for dtype in dtypes:
        for window in (None, 40):
            name = f"{str(dtype)[6:]}, window {window}"
            errors, differing, number = list[float](), 0, 0
            for _ in range(2 if bench.is_tiny else 6):
                if bench.left < 5:
                    break
                error, apart, rows = try_batch(bench, attend, rng, dtype, window)
                errors.append(error)
                differing, number = differing + apart, number + rows
            if not errors:
                bench.leave_out(f"attention, {name}", "no time")
                continue
            # Whatever is no number is worse than any.
            worst = max(errors, key=lambda error: (math.isnan(error), error))
            bench.add(f"error of attention, {name}", worst, "relative")
            bench.add(f"rows that differ alone, {name}", differing, "rows", note=f"of {number}")
            limit = 2e-2 if dtype.itemsize < 4 else 1e-4
            if not worst <= limit or differing:
                bench.fail(name, "attention is wrong")
    for num_rows in (1, 4) if bench.is_tiny else (1, 128):
        measure_choice(bench, num_rows, 500 if bench.is_tiny else 128256)


@torch.inference_mode()
def measure_choice(bench: Bench, num_rows: int, vocab_size: int) -> None:
    """Compares the choice of tokens on this device with plain PyTorch's."""
    logits = 3 * torch.randn(num_rows, vocab_size, dtype=bench.dtype, device=bench.device)
    slots = torch.arange(num_rows, device=bench.device)
    kernel = CHOOSE.kernel_for(logits)
    for name, top_p in (("all tokens", 1.0), ("top-p", 0.9)):
        table = SamplingTable(num_rows, vocab_size, bench.device)
        for slot in range(num_rows):
            table.set(slot, SamplingParams(temperature=1.0, top_p=top_p, seed=slot))
        table.writes.flush()
        arguments = logits, slots, slots, table, table.needs(list(range(num_rows)))
        plain = bench.seconds(partial(CHOOSE.plain, *arguments), 3)
        what = f"choice of {num_rows} tokens, {name}"
        bench.add(f"{what}, plain PyTorch", plain * 1e6, "us")
        if kernel is None:
            bench.leave_out(what, "there is no kernel for it here")
            continue
        bench.add(what, bench.seconds(partial(kernel, *arguments), 6) * 1e6, "us")
        if not torch.equal(kernel(*arguments), CHOOSE.plain(*arguments)):
            bench.fail(what, "other tokens are chosen")


def attention_of(bench: Bench) -> Callable[..., torch.Tensor]:
    """Returns the attention that runs on this device."""
    if not bench.is_cuda:
        return attend_rows
    kernel: Any = importlib.import_module("optimist_worker.core.attention.launch")
    attend: Callable[..., torch.Tensor] = kernel.attend
    return attend


@torch.inference_mode()
def try_batch(
    bench: Bench,
    attend: Callable[..., torch.Tensor],
    rng: random.Random,
    dtype: torch.dtype,
    window: int | None,
) -> tuple[float, int, int]:
    """Returns the error of one batch, and how many of its rows differ when they are alone."""
    device, longest = bench.device, 64 if bench.is_tiny else 3000
    rows = [random_row(rng, longest, kind) for kind in ("decode", "chain", "tree", "chunk") * 2]
    heads, kv_heads, dim = (4, 2, 16) if bench.is_tiny else (32, 8, 128)
    blocks = [list(range(i, 8 * (longest // BLOCK_SIZE + 20), 8)) for i in range(8)]
    number = 1 + max(max(table) for table in blocks)
    spec = LayerSpec(kv_heads, dim, dim)
    pool = KVPool([spec], number, BLOCK_SIZE, dtype, device)
    precise = KVPool([spec], number, BLOCK_SIZE, torch.float32, device)
    for memory, same in ((pool.keys, precise.keys), (pool.values, precise.values)):
        memory[0].normal_()
        same[0].copy_(memory[0])
    num_tokens = sum(len(row.positions) for row in rows)
    query = torch.randn(1, heads, num_tokens, dim, dtype=dtype, device=device)
    options: dict[str, Any] = {"scale": dim**-0.5, "window": window, "softcap": None, "sinks": None}

    def run(
        chosen: Callable[..., torch.Tensor], pool: KVPool, query: torch.Tensor, which: slice
    ) -> torch.Tensor:
        batch = make_batch(pool, rows[which], blocks[which], device)
        return chosen(query, pool.keys[0], pool.values[0], batch, **options)

    output = run(attend, pool, query, slice(None))
    reference = run(attend_rows, precise, query.float(), slice(None))
    error = float((output.float() - reference).norm() / reference.norm())
    ends = np.cumsum([0, *(len(row.positions) for row in rows)]).tolist()
    differing = 0
    for index, (start, end) in enumerate(pairwise(ends)):
        alone = run(attend, pool, query[:, :, start:end], slice(index, index + 1))
        differing += not torch.equal(alone, output[:, start:end])
    return error, differing, len(rows)


def random_row(rng: random.Random, longest: int, kind: str) -> SimpleNamespace:
    """Returns a row: keys before it, positions of its tokens, and ancestors of its drafts."""
    computed = rng.randrange(1, longest)
    known = 1 if kind in ("decode", "tree") else rng.randrange(2, 20 if kind == "chain" else 200)
    positions, ancestors, depths = list(range(computed, computed + known)), [0] * known, [0]
    masks: list[int] = []
    for node in range(rng.randrange(2, 65) if kind == "tree" else 0):
        parent = rng.randrange(-1, node)
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << node)
        depths.append(depths[1 + parent] + 1)
        positions.append(computed + known - 1 + depths[-1])
        ancestors.append(masks[-1] - (masks[-1] >> 63 << 64))
    return SimpleNamespace(computed=computed, known=known, positions=positions, ancestors=ancestors)


def make_batch(
    pool: KVPool, rows: Sequence[Any], tables: Sequence[list[int]], device: torch.device
) -> AttentionBatch:
    """Returns a batch of random rows."""

    def send(values: Sequence[Any], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    lengths = [len(row.positions) for row in rows]
    most = max(row.computed + length for row, length in zip(rows, lengths, strict=True))
    num_blocks = min(len(table) for table in tables)
    return AttentionBatch(
        pool=pool,
        slot_mapping=send([0] * sum(lengths)),
        query_starts=send(np.cumsum([0, *lengths]).tolist()),
        num_computed_tokens=send([row.computed for row in rows]),
        tree_starts=send([row.computed + row.known for row in rows]),
        positions=send([position for row in rows for position in row.positions]),
        ancestors=send([bits for row in rows for bits in row.ancestors]),
        block_tables=send([table[:num_blocks] for table in tables], torch.int32),
        # Rounded as the worker rounds them: each size is compiled.
        max_num_queries=power_up(max(lengths), 1),
        max_num_keys=power_up(most, 2, least=512),
    )
