"""Inputs for comparing the kernels around the layers: small steps of rows that write a known text.

In place of a model, every token is followed by the next number, up to `_PERIOD`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.choice import PICK
from optimist_worker.core.acceptance.verdict import REACH_VERDICT, Verdict
from optimist_worker.core.attention.paged_attention import KVPool, LayerSpec
from optimist_worker.core.batch.flat_batch import LAY_OUT, Layout, PassSize
from optimist_worker.core.batch.results import MOVE, SETTLE, unpack
from optimist_worker.core.batch.slot_table import FIT, FittedRows, SlotTable
from optimist_worker.core.batch.window_table import DRAFT_WINDOWS, SET_WINDOWS, WindowTable
from optimist_worker.core.drafts import MERGE, Drafts
from optimist_worker.core.lookup import LOOK_UP, NO_CURSOR, Found, Looking, Predictions
from optimist_worker.core.operation import Function, Operation, by_plain_pytorch
from optimist_worker.core.plan import Admission, WindowUpdate
from optimist_worker.core.transfers import WRITE_STATE, pack_writes, send

OPERATIONS = (
    *(WRITE_STATE, SET_WINDOWS, DRAFT_WINDOWS, FIT, LOOK_UP, MERGE, LAY_OUT, PICK, REACH_VERDICT),
    *(SETTLE, MOVE),
)
_PERIOD = 7
_BLOCK_SIZE, _NUM_BLOCKS, _MOST_TOKENS = 4, 40, 40
_WIDTH = 8
_SIZE = PassSize(64, 32, 32, _MOST_TOKENS)
_PLANS = (
    # A prompt in the middle, one with a chain, one with a tree, one looked up, and padding.
    [(0, 5, 0), (1, 20, 8), (2, 20, 8), (3, 20, 5), (4, 0, 0)],
    [(3, 1, 8), (2, 1, 8), (1, 1, 3), (0, 20, 2), (4, 0, 0)],
)


def step_cases(
    device: torch.device, dtype: torch.dtype, vocab_size: int
) -> Iterator[tuple[Operation, Any]]:
    """Goes through the operations, each with what runs steps by an implementation of it.

    All others are in plain PyTorch meanwhile.
    """
    yield WRITE_STATE, partial(_write_state, device)
    for operation in OPERATIONS[1:]:
        yield operation, partial(_run_by, operation, device, dtype, max(vocab_size, _PERIOD))


def _write_state(device: torch.device, run: Function) -> list[torch.Tensor]:
    table, reals = torch.zeros((5, 9), dtype=torch.int64), torch.zeros(7, dtype=torch.float64)
    state = [send(table, device), send(table.int(), device), send(reals, device)]
    targets = [state[0][:, 3], state[1][2, 1:8], state[2][2:4], state[0][3, 5:6]]
    values = [
        *(np.arange(5) << 35, np.arange(7, dtype=np.int32), np.array([0.1, -np.inf])),
        np.array([-2]),
    ]
    run(send(pack_writes(targets, values), device), targets)
    return [*state[:2], state[2].view(torch.int64)]


def _run_by(
    operation: Operation, device: torch.device, dtype: torch.dtype, vocab_size: int, run: Function
) -> list[torch.Tensor]:
    with by_plain_pytorch(*OPERATIONS):
        operation.is_replaced = run is operation.plain
        state = _State.make(device, dtype, vocab_size)
        found = []
        for plan in _PLANS:
            found += _step(state, torch.tensor(plan, device=device).T.contiguous(), vocab_size)
        table, windows = state.table, state.windows
        cursors = state.cursors[:-1], state.predictions.cursors[:-1]
        texts = table.columns[:, :-1], table.token_ids[:-1]
        return [*found, *texts, windows.here[:, :-1], *cursors]


class _State(NamedTuple):
    table: SlotTable
    windows: WindowTable
    pool: KVPool
    cursors: torch.Tensor
    predictions: Predictions

    @classmethod
    def make(cls, device: torch.device, dtype: torch.dtype, vocab_size: int) -> "_State":
        table = SlotTable(
            *(len(_PLANS[0]) - 1, _MOST_TOKENS, _BLOCK_SIZE, _NUM_BLOCKS, device),
            reads_sizes=False,
            vocab_size=vocab_size,
        )
        windows, predictions = WindowTable(table, vocab_size), Predictions(table)
        cursors = torch.full_like(predictions.cursors, NO_CURSOR)
        text = [number % _PERIOD for number in range(_MOST_TOKENS)]
        for slot in range(table.num_slots):
            admission = Admission(
                *(slot, "", text[: 11 + slot], 11 + slot, SamplingParams()),
                max_length=_MOST_TOKENS - 2 * slot,
                stop_token_ids=[text[18]] if slot == 1 else [],
                predicted_token_ids=text[14:] if slot == 3 else [],
            )
            table.admit(admission)
            windows.clear(slot)
            predictions.admit(admission)
        table.writes.flush()
        windows.set(
            [
                WindowUpdate(1, 0, [*text[12:16], 0, *text[17:24]]),
                WindowUpdate(2, 0, [9, text[13], 9, *text[14:18]], [-1, -1, 1, 1, 3, 4, 5]),
            ]
        )
        slots = range(table.num_slots)
        blocks = [list(range(slot, _NUM_BLOCKS, table.num_slots)) for slot in slots]
        table.append_blocks(list(slots), blocks, [0] * table.num_slots)
        table.writes.flush()
        pool = KVPool([LayerSpec(2, 16, 16)] * 2, _NUM_BLOCKS, _BLOCK_SIZE, dtype, device)
        for memory in pool.memory:
            memory.copy_(torch.arange(memory[0, :, 0, 0].numel(), device=device)[:, None, None])
        return cls(table, windows, pool, cursors, predictions)


def _step(state: _State, plan: torch.Tensor, vocab_size: int) -> list[torch.Tensor]:
    """Runs a step; returns how it was laid out, and what has come of it."""
    table, windows, pool, *sources = state
    rows: FittedRows = FIT(plan, table)
    drafts, indices, limits = windows.draft(
        rows.slots, rows.limits, rows.drafter_limits, _WIDTH, has_trees=True
    )
    looking = Looking(rows.slots, rows.columns, limits, _WIDTH, _MOST_TOKENS)
    found: Found = LOOK_UP(table.token_ids, looking, *sources)
    source = torch.full_like(limits, DraftSource.NGRAM)
    looked_up = Drafts(found.token_ids, found.num_tokens, source, positions=found.positions)
    merged: Drafts = MERGE(drafts.num_tokens, drafts, looked_up)
    layout: Layout = LAY_OUT(rows.slots, table, rows, merged, _SIZE)
    tokens, nodes = layout.tokens, layout.nodes
    next_ids = (layout.input_ids[layout.logits_indices] + 1) % _PERIOD
    logits = torch.zeros((len(next_ids), vocab_size), dtype=pool.keys[0].dtype)
    logits = send(logits, table.device).scatter_(1, next_ids[:, None], 1.0)
    largest, choices = PICK(logits)
    verdict: Verdict = REACH_VERDICT(choices, largest, None, nodes, merged)
    settled = SETTLE(rows.slots, table, windows, rows, merged, indices, verdict, None)
    if verdict.path is not None:
        MOVE(verdict.path, verdict.num_accepted, rows.slots, rows.ends, table, pool)
    parts = (layout.input_ids, layout.positions, layout.slot_mapping, tokens.rows, tokens.offsets)
    laid_out = [part * tokens.is_real for part in parts]
    if layout.ancestors is not None:
        laid_out.append(layout.ancestors * tokens.is_real)
    of_nodes = (layout.logits_indices, layout.next_positions, layout.next_slots)
    laid_out += [part * nodes.is_real for part in of_nodes]
    outputs = unpack(settled.packed.cpu().numpy())
    columns = [torch.from_numpy(column) for column in outputs]
    # Nobody reads the block of padding.
    return [*laid_out, *columns, *(memory[:, :-_BLOCK_SIZE] for memory in pool.memory)]
