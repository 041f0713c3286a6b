"""Rows of different kinds and lengths as one flat batch for one forward pass."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from optimist_worker.core.attention.paged_attention import AttentionBatch, KVPool
from optimist_worker.core.batch.slot_table import FittedRows, SlotTable
from optimist_worker.core.drafts import Drafts, Ragged, ancestor_bits, lay_out
from optimist_worker.core.operation import Operation
from optimist_worker.core.recurrence.rows import RecurrentPass

MOST_TREE_NODES = 64
"""Nodes of a tree: the attention mask has a bit for each."""


@dataclass(slots=True)
class FlatBatch:
    """The inputs of one forward pass over all rows."""

    input_ids: torch.Tensor
    """Int64 `[num_tokens]`."""
    positions: torch.Tensor
    """Int64 `[num_tokens]`."""
    logits_indices: torch.Tensor
    """Tokens whose logits are needed, int64 `[num_logits]`."""
    attention: AttentionBatch
    recurrent: RecurrentPass | None = None
    """None if the model has no recurrent layers."""


@dataclass(frozen=True, slots=True)
class PassSize:
    """Sizes of a pass that the host knows beforehand; what is not filled is padding."""

    num_tokens: int
    num_logits: int
    max_num_queries: int
    """Most tokens of one row."""
    max_num_keys: int
    """Longest context of one row, its own tokens included."""


class FedLevel(NamedTuple):
    """Drafts of one level of each row, which their drafter is fed."""

    token_ids: torch.Tensor
    """`[num_rows, num_nodes]`."""
    depth: int
    """The level, from 1."""
    num_fed: int
    """Nodes per row that were fed before."""
    bits: torch.Tensor | None
    """Their ancestors among all that were fed, themselves included, `[num_rows, num_nodes]`; None
    for chains."""
    features: torch.Tensor | None = None
    """Those that came with each one's parent, `[num_rows * num_nodes, dim]`."""


class Layout(NamedTuple):
    """How known tokens and drafts of rows lie in a pass; `FlatBatch` has the others' meaning."""

    tokens: Ragged
    """Tokens of each row: the known ones, its drafts after them."""
    nodes: Ragged
    """Which node of which row each row of logits is for: element 0 is after the last known token,
    element 1 + i after draft i. Rows that emit nothing have none."""
    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    ancestors: torch.Tensor | None
    block_tables: torch.Tensor
    logits_indices: torch.Tensor
    next_positions: torch.Tensor
    """Position of the token after each node, int64 `[num_logits]`."""
    next_slots: torch.Tensor
    """Slot of each node's row, int64 `[num_logits]`."""

    def build_batch(self, pool: KVPool, rows: FittedRows, size: PassSize) -> FlatBatch:
        """Returns the pass."""
        attention = AttentionBatch(
            pool=pool,
            slot_mapping=self.slot_mapping,
            query_starts=self.tokens.starts,
            num_computed_tokens=rows.starts,
            tree_starts=rows.ends,
            positions=self.positions,
            ancestors=self.ancestors,
            block_tables=self.block_tables,
            max_num_queries=size.max_num_queries,
            max_num_keys=size.max_num_keys,
        )
        return FlatBatch(self.input_ids, self.positions, self.logits_indices, attention)


def lay_out_rows(
    slots: torch.Tensor, table: SlotTable, rows: FittedRows, drafts: Drafts, size: PassSize
) -> Layout:
    """Lays out the target's pass; the drafts are within the limits of the rows of these slots."""
    known = rows.num_known_tokens
    nodes = lay_out((1 + drafts.num_tokens) * rows.emits, size.num_logits)
    tokens = lay_out(known + drafts.num_tokens, size.num_tokens)
    row, offset = tokens.rows, tokens.offsets
    token_slots = slots[row]
    indices = rows.starts[row] + offset
    node = offset - known[row]
    is_draft = (node >= 0) & tokens.is_real
    input_ids = table.read_tokens(token_slots, indices)
    positions, ancestors = indices, None
    if drafts.width:
        node = node.clamp(0, drafts.width - 1)
        input_ids = torch.where(is_draft, drafts.token_ids[row, node], input_ids)
        if drafts.parents is not None:
            depth = drafts.depths[row, node]
            positions = torch.where(is_draft, rows.ends[row] - 1 + depth, indices)
            ancestors = torch.where(is_draft, _ancestors(drafts.parents, drafts)[row, node], 0)
    last = (tokens.starts[:-1] + known - 1)[nodes.rows]
    # Padding of rows that have no tokens may lie before the first.
    logits_indices = (last + nodes.offsets).clamp(min=0)
    return Layout(
        tokens=tokens,
        nodes=nodes,
        input_ids=input_ids,
        positions=positions,
        slot_mapping=_slot_mapping(table, token_slots, indices, tokens.is_real),
        ancestors=ancestors,
        block_tables=table.block_tables[slots],
        logits_indices=logits_indices,
        next_positions=positions[logits_indices] + 1,
        next_slots=slots[nodes.rows],
    )


LAY_OUT = Operation("lay_out", lay_out_rows, "optimist_worker.core.batch.row_kernels:lay_out_rows")


def build_known_batch(
    table: SlotTable,
    pool: KVPool,
    slots: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    size: PassSize,
    *,
    shift: int = 0,
) -> tuple[FlatBatch, Ragged]:
    """Builds a pass over verified tokens; logits are those after the last token of each row.

    Of each slot it has the tokens at index `starts` and after, `lengths` in all, `[num_rows]`; or
    with `shift` those that are as many positions later.
    """
    tokens = lay_out(lengths, size.num_tokens)
    row_slots = slots[tokens.rows]
    indices = starts[tokens.rows] + tokens.offsets
    attention = AttentionBatch(
        pool=pool,
        slot_mapping=_slot_mapping(table, row_slots, indices, tokens.is_real),
        query_starts=tokens.starts,
        num_computed_tokens=starts,
        tree_starts=starts + lengths,
        positions=indices,
        ancestors=None,
        block_tables=table.block_tables[slots],
        max_num_queries=size.max_num_queries,
        max_num_keys=size.max_num_keys,
    )
    input_ids = table.read_tokens(row_slots, indices + shift)
    last = (tokens.starts[1:] - 1).clamp(min=0)
    return FlatBatch(input_ids, indices, last, attention), tokens


def build_level_batch(
    table: SlotTable,
    pool: KVPool,
    slots: torch.Tensor,
    first: torch.Tensor,
    level: FedLevel,
    max_length: int,
) -> FlatBatch:
    """Builds a pass over one level of each row's drafts; logits are those after every token.

    Nodes lie in the pool in the order in which they are fed, from index `first` (`[num_rows]`) on.
    No row is longer than `max_length`, known to the host.
    """
    (num_rows, num_nodes), num_fed = level.token_ids.shape, level.num_fed
    offsets = num_fed + torch.arange(num_nodes, device=slots.device)
    indices = (first[:, None] + offsets).flatten()
    row_slots = slots.repeat_interleave(num_nodes)
    # Some models have a table of positions; what lies after its end is never accepted.
    positions = (first + level.depth - 1).clamp(max=table.token_ids.shape[1] - 1)
    positions = positions.repeat_interleave(num_nodes)
    attention = AttentionBatch(
        pool=pool,
        slot_mapping=table.kv_indices(row_slots, indices),
        query_starts=torch.arange(num_rows + 1, device=slots.device) * num_nodes,
        num_computed_tokens=first + num_fed,
        tree_starts=first,
        positions=positions,
        ancestors=None if level.bits is None else level.bits.flatten(),
        block_tables=table.block_tables[slots],
        max_num_queries=num_nodes,
        max_num_keys=max_length + num_fed + num_nodes,
    )
    every = torch.arange(num_rows * num_nodes, device=slots.device)
    return FlatBatch(level.token_ids.flatten(), positions, every, attention)


def _ancestors(parents: torch.Tensor, drafts: Drafts) -> torch.Tensor:
    """Returns ancestors as bits for rows that are trees and 0 for chains, `[num_rows, width]`."""
    # Only chains are longer than there are bits.
    bits = ancestor_bits(parents[:, :MOST_TREE_NODES])
    bits = torch.nn.functional.pad(bits, (0, drafts.width - bits.shape[1]))
    return torch.where(drafts.is_tree[:, None], bits, 0)


def _slot_mapping(
    table: SlotTable, slots: torch.Tensor, indices: torch.Tensor, is_real: torch.Tensor
) -> torch.Tensor:
    trash = table.trash_block * table.block_size
    return torch.where(is_real, table.kv_indices(slots, indices), trash)
