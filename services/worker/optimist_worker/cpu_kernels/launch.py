"""Hands tensors to the CPU kernels; each function is the one of the same name in plain PyTorch."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from optimist_common.lookup import LONGEST_MATCH, MATCH_AT_START, REACH
from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable
from optimist_worker.core.attention.paged_attention import AttentionBatch
from optimist_worker.core.lookup import NO_CURSOR, Found, Looking, Predictions
from optimist_worker.core.recurrence.scan import DeltaTokens, Updates
from optimist_worker.core.recurrence.walk import Walk
from optimist_worker.cpu_kernels.build import load
from optimist_worker.model import operations
from optimist_worker.model.fused import LlamaLayer, compute_layers
from optimist_worker.model.operations import ACTIVATIONS, Heads, Norm, Panels, product_addresses

_kernels: Any = load()
_BFLOAT16 = torch.bfloat16


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Is `paged_attention.attend_rows`."""
    _, num_heads, num_tokens, key_dim = query.shape
    num_kv_heads, value_dim = values.shape[1:]
    if query.stride(3) != 1:
        query = query.contiguous()
    sinks = None if sinks is None else sinks.float().contiguous()
    output = query.new_empty((1, num_tokens, num_heads, value_dim))
    _kernels.attend(
        query.data_ptr(),
        query.stride(1),
        query.stride(2),
        keys.data_ptr(),
        values.data_ptr(),
        output.data_ptr(),
        *_batch_addresses(batch),
        num_tokens,
        num_heads,
        num_kv_heads,
        key_dim,
        value_dim,
        window or 0,
        0 if sinks is None else sinks.data_ptr(),
        scale,
        softcap or 0.0,
        query.dtype == _BFLOAT16,
    )
    return output


def _batch_addresses(batch: AttentionBatch) -> tuple[int, ...]:
    if batch.addresses is None:
        batch.addresses = (
            batch.query_starts.data_ptr(),
            batch.num_computed_tokens.data_ptr(),
            batch.tree_starts.data_ptr(),
            0 if batch.ancestors is None else batch.ancestors.data_ptr(),
            batch.block_tables.data_ptr(),
            batch.block_tables.stride(0),
            batch.pool.block_size,
            len(batch.num_computed_tokens),
        )
    return batch.addresses


def multiply(
    inputs: torch.Tensor,
    panels: Panels,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Is `operations.multiply`."""
    inputs = inputs.contiguous()
    output = inputs.new_empty((*inputs.shape[:-1], panels.width))
    _kernels.multiply(
        *product_addresses(panels, bias),
        inputs.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        output.data_ptr(),
        inputs.numel() // panels.depth,
        inputs.dtype == _BFLOAT16,
    )
    return output


def choose(
    scores: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: SamplingTable,
    needs: Needs,
) -> torch.Tensor:
    """Is `choice.choose`."""
    columns = table.gather(slots)
    scores, tokens = scores.contiguous(), torch.empty_like(positions)
    _kernels.choose(
        scores.data_ptr(),
        tokens.data_ptr(),
        positions.contiguous().data_ptr(),
        columns.temperature.data_ptr(),
        columns.top_p.data_ptr(),
        columns.log_min_p.data_ptr(),
        columns.top_k.data_ptr(),
        columns.seed.data_ptr(),
        columns.samples.data_ptr(),
        *scores.shape,
        scores.dtype == _BFLOAT16,
    )
    return tokens


def look_up(
    token_ids: torch.Tensor, rows: Looking, cursors: torch.Tensor, predictions: Predictions
) -> Found:
    """Is `lookup.look_up`."""
    number, width = len(rows.slots), rows.width
    columns, known = torch.empty((3, number), dtype=torch.int64), rows.columns
    following = torch.empty((number, width), dtype=torch.int64)
    inputs = [
        column.contiguous()
        for column in (rows.slots, known.num_tokens, known.num_prompt_tokens, rows.limits)
    ]
    moved = (cursors, predictions.cursors, predictions.lengths)
    _kernels.look_up(
        token_ids.data_ptr(),
        token_ids.stride(0),
        predictions.token_ids.data_ptr(),
        predictions.token_ids.stride(0),
        *(column.data_ptr() for column in inputs),
        *(column.data_ptr() for column in moved),
        *(column.data_ptr() for column in columns),
        following.data_ptr(),
        number,
        width,
        LONGEST_MATCH,
        REACH,
        MATCH_AT_START,
        NO_CURSOR,
    )
    num_matched, num_tokens, positions = columns
    return Found(num_matched, num_tokens, positions, following)


def scan(
    matrices: torch.Tensor, tokens: DeltaTokens, walk: Walk, *, moves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Is `scan.scan`."""
    inputs = DeltaTokens(*(each.contiguous() for each in tokens))
    recalled, added = torch.empty_like(inputs.values), torch.empty_like(inputs.values)
    addresses = [each.data_ptr() for each in (*inputs, recalled, added)]
    _scan(matrices[None], inputs.keys.shape[1], addresses, walk, moves=moves)
    return recalled, added


def replay(matrices: torch.Tensor, updates: Updates, walk: Walk) -> None:
    """Is `scan.replay`."""
    inputs = Updates(*(each.contiguous() for each in updates))
    addresses = [0, *(each.data_ptr() for each in inputs), 0, 0, 0]
    _scan(matrices, inputs.keys.shape[2], addresses, walk, moves=True)


def _scan(
    matrices: torch.Tensor, num_key_heads: int, addresses: list[int], walk: Walk, *, moves: bool
) -> None:
    _kernels.scan(
        matrices.data_ptr(),
        *matrices.stride()[:2],
        walk.slots.data_ptr(),
        walk.origins.data_ptr(),
        *addresses,
        len(matrices),
        len(walk.slots),
        len(walk.tokens),
        matrices.shape[2],
        num_key_heads,
        *matrices.shape[3:],
        moves,
    )


def layers(
    states: torch.Tensor,
    own: Sequence[LlamaLayer],
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    batch: AttentionBatch,
) -> torch.Tensor:
    """Is `fused.compute_layers`, in one call for all that have `addresses`."""
    cosine, sine = (each.to(states.dtype).contiguous() for each in position_embeddings)
    parts = [(layer, layer.addresses) for layer in own]
    for is_one_call, part in groupby(parts, lambda pair: pair[1] is not None):
        layers, addresses = map(list, zip(*part, strict=True))
        if not is_one_call:
            states = compute_layers(states, layers, position_embeddings, batch)
            continue
        states, result = states.contiguous(), torch.empty_like(states)
        _kernels.layers(
            addresses,
            [batch.pool.addresses[layer.layer_idx] for layer in layers],
            states.data_ptr(),
            result.data_ptr(),
            states.shape[0],
            cosine.data_ptr(),
            sine.data_ptr(),
            batch.slot_mapping.data_ptr(),
            *_batch_addresses(batch),
        )
        states = result
    return states


def norm(states: torch.Tensor, outer: Norm) -> torch.Tensor:
    """Is `operations.norm`."""
    states = states.contiguous()
    output = torch.empty_like(states)
    size = states.shape[-1]
    _kernels.norm(
        states.data_ptr(),
        outer.wide_weight.data_ptr(),
        output.data_ptr(),
        states.numel() // size,
        size,
        outer.epsilon,
        states.dtype == _BFLOAT16,
    )
    return output


def gate(gate_up: torch.Tensor, activate: Any) -> torch.Tensor:
    """Is `operations.gate`; activations that the kernel lacks are computed by PyTorch."""
    kind = ACTIVATIONS.get(type(activate).__name__)
    if kind is None:
        return operations.gate(gate_up, activate)
    gate_up = gate_up.contiguous()
    num_rows, size = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty((num_rows, size))
    _kernels.gate(
        gate_up.data_ptr(),
        output.data_ptr(),
        num_rows,
        size,
        kind == "gelu_tanh",
        gate_up.dtype == _BFLOAT16,
    )
    return output


def rotate_and_write(
    projected: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """Is `operations.rotate_and_write`."""
    num_tokens, _, dim = projected.shape
    projected = projected.contiguous()
    cosine, sine = (each.to(projected.dtype).contiguous() for each in (cosine, sine))
    queries = projected.new_empty((num_tokens, heads.num_queries, dim))
    query_norm, key_norm = heads.query_norm, heads.key_norm
    _kernels.rotate(
        projected.data_ptr(),
        cosine.data_ptr(),
        sine.data_ptr(),
        0 if query_norm is None else query_norm.wide_weight.data_ptr(),
        0 if key_norm is None else key_norm.wide_weight.data_ptr(),
        0.0 if query_norm is None else query_norm.epsilon,
        0.0 if key_norm is None else key_norm.epsilon,
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        slot_mapping.data_ptr(),
        num_tokens,
        heads.num_queries,
        heads.num_keys,
        dim,
        projected.dtype == _BFLOAT16,
    )
    return queries.transpose(0, 1)[None]
