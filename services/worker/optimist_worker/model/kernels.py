"""The operations of `operations.py` as Triton kernels, one launch each; sums are in float32."""

from typing import Any

import torch
import triton
import triton.language as tl

from optimist_worker.core.attention.launch import tile_side
from optimist_worker.model import operations
from optimist_worker.model.linear import PlainLinear
from optimist_worker.model.operations import ACTIVATIONS, Heads, Norm

_GATE_TILE = 1024


def norm(states: torch.Tensor, outer: Norm) -> torch.Tensor:
    """Is `operations.norm`."""
    normed = torch.empty_like(states, memory_format=torch.contiguous_format)
    _launch_norm(states.contiguous(), None, None, outer, normed, normed)
    return normed


def add_norm(
    inputs: torch.Tensor, linear: Any, residual: torch.Tensor, inner: Norm | None, outer: Norm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Is `operations.add_norm`."""
    projected = linear(inputs)
    total, normed = torch.empty_like(projected), torch.empty_like(projected)
    _launch_norm(projected, residual.contiguous(), inner, outer, total, normed)
    return total, normed


def add(
    inputs: torch.Tensor, linear: Any, residual: torch.Tensor, inner: Norm | None
) -> torch.Tensor:
    """Is `operations.add`; without a norm the product itself adds to the residual."""
    if inner is None:
        if isinstance(linear, PlainLinear) and linear.bias is None:
            return residual.addmm_(inputs, linear.weight.t())
        return operations.add(inputs, linear, residual, None)
    projected = linear(inputs)
    total = torch.empty_like(projected)
    _launch_norm(projected, residual.contiguous(), inner, None, total, total)
    return total


def _launch_norm(
    inputs: torch.Tensor,
    residual: torch.Tensor | None,
    inner: Norm | None,
    outer: Norm | None,
    total: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    size = inputs.shape[-1]
    tile = tile_side(size)
    with torch.cuda.device_of(inputs):
        norm_token[(inputs.numel() // size,)](
            inputs,
            inputs if residual is None else residual,
            inputs if inner is None else inner.weight,
            inputs if outer is None else outer.weight,
            total,
            normed,
            0.0 if inner is None else inner.epsilon,
            0.0 if outer is None else outer.epsilon,
            size,
            tile,
            residual is not None,
            inner is not None,
            outer is not None,
            num_warps=min(16, max(4, tile // 512)),
        )


@triton.jit
def norm_token(
    inputs,
    residual,
    inner,
    outer,
    total,
    normed,
    inner_epsilon,
    outer_epsilon,
    size: tl.constexpr,
    tile: tl.constexpr,
    has_residual: tl.constexpr,
    has_inner: tl.constexpr,
    has_outer: tl.constexpr,
):
    """Computes `total = residual + inner(inputs)` and `normed = outer(total)` of one token."""
    lane = tl.arange(0, tile)
    mask = lane < size
    at = tl.program_id(0).to(tl.int64) * size + lane
    numbers = tl.load(inputs + at, mask=mask, other=0.0).to(tl.float32)
    if has_inner:
        numbers = _norm(numbers, inner, lane, mask, inner_epsilon, size)
    if has_residual:
        numbers += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        # The sum is normed as it is kept.
        rounded = numbers.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=mask)
        numbers = rounded.to(tl.float32)
    if has_outer:
        numbers = _norm(numbers, outer, lane, mask, outer_epsilon, size)
        tl.store(normed + at, numbers.to(normed.dtype.element_ty), mask=mask)


@triton.jit
def _norm(numbers, weight, lane, mask, epsilon, size: tl.constexpr):
    """Norms a vector in float32."""
    factor = tl.rsqrt(tl.sum(numbers * numbers, 0) / size + epsilon)
    return numbers * factor * tl.load(weight + lane, mask=mask, other=0.0).to(tl.float32)


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
    projected = projected.contiguous()
    num_tokens, num_heads, head_dim = projected.shape
    query = projected.new_empty((num_tokens, heads.num_queries, head_dim))
    has_norm = heads.query_norm is not None and heads.key_norm is not None
    with torch.cuda.device_of(projected):
        rotate_head[(num_tokens, num_heads)](
            projected,
            cosine.contiguous(),
            sine.contiguous(),
            heads.query_norm.weight if heads.query_norm is not None else projected,
            heads.key_norm.weight if heads.key_norm is not None else projected,
            query,
            keys,
            values,
            slot_mapping,
            heads.query_norm.epsilon if heads.query_norm is not None else 0.0,
            heads.num_queries,
            heads.num_keys,
            head_dim,
            tile_side(head_dim),
            has_norm,
            num_warps=1,
        )
    return query.transpose(0, 1)[None]


@triton.jit
def rotate_head(
    projected,
    cosine,
    sine,
    query_weight,
    key_weight,
    query,
    keys,
    values,
    slot_mapping,
    epsilon,
    num_queries: tl.constexpr,
    num_keys: tl.constexpr,
    head_dim: tl.constexpr,
    tile: tl.constexpr,
    has_norm: tl.constexpr,
):
    """Rotates one head of one token, or copies a value; the grid is `[num_tokens, num_heads]`."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, tile)
    mask = lane < head_dim
    source = projected + (token * tl.num_programs(1) + head) * head_dim
    numbers = tl.load(source + lane, mask=mask, other=0.0)
    index = tl.load(slot_mapping + token)
    if head >= num_queries + num_keys:
        at = values + (index * num_keys + head - num_queries - num_keys) * head_dim + lane
        tl.store(at, numbers, mask=mask)
        return
    numbers = numbers.to(tl.float32)
    half: tl.constexpr = head_dim // 2
    partner = tl.where(lane < half, lane + half, lane - half)
    others = tl.load(source + partner, mask=mask, other=0.0).to(tl.float32)
    if has_norm:
        weight = query_weight
        if head >= num_queries:
            weight = key_weight
        factor = tl.rsqrt(tl.sum(numbers * numbers, 0) / head_dim + epsilon)
        numbers *= factor * tl.load(weight + lane, mask=mask, other=0.0).to(tl.float32)
        others *= factor * tl.load(weight + partner, mask=mask, other=0.0).to(tl.float32)
    angle = token * head_dim + lane
    cosines = tl.load(cosine + angle, mask=mask, other=0.0).to(tl.float32)
    sines = tl.load(sine + angle, mask=mask, other=0.0).to(tl.float32)
    rotated = numbers * cosines + tl.where(lane < half, -others, others) * sines
    rotated = rotated.to(query.dtype.element_ty)
    if head < num_queries:
        tl.store(query + (token * num_queries + head) * head_dim + lane, rotated, mask=mask)
    else:
        at = keys + (index * num_keys + head - num_queries) * head_dim + lane
        tl.store(at, rotated, mask=mask)


def gate(gate_up: torch.Tensor, activate: Any) -> torch.Tensor:
    """Is `operations.gate`; activations that the kernel lacks are computed by PyTorch."""
    kind = ACTIVATIONS.get(type(activate).__name__)
    if kind is None:
        return operations.gate(gate_up, activate)
    size = gate_up.shape[-1] // 2
    product = gate_up.new_empty((*gate_up.shape[:-1], size))
    with torch.cuda.device_of(gate_up):
        gate_tile[(product.numel() // size, triton.cdiv(size, _GATE_TILE))](
            gate_up.contiguous(), product, size, _GATE_TILE, kind == "silu"
        )
    return product


@triton.jit
def gate_tile(gate_up, product, size, tile: tl.constexpr, is_silu: tl.constexpr):
    """Computes a tile of one token; the grid is `[num_tokens, tiles]`."""
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * tile + tl.arange(0, tile)
    mask = lane < size
    first = tl.load(gate_up + token * 2 * size + lane, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(gate_up + token * 2 * size + size + lane, mask=mask, other=0.0)
    if is_silu:
        first /= 1.0 + tl.exp(-first)
    else:
        # GELU by tanh, and (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)).
        first /= 1.0 + tl.exp(-1.5957691216057308 * (first + 0.044715 * first * first * first))
    numbers = first * second.to(tl.float32)
    tl.store(product + token * size + lane, numbers.to(product.dtype.element_ty), mask=mask)
