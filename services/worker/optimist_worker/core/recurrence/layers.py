"""Recurrent layers of transformers' models, computed with our states.

A layer keeps its weights; only what it does with them is replaced. Called without a pass it does
what transformers does.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN

from optimist_worker.core.recurrence.convolution import convolve
from optimist_worker.core.recurrence.delta import run_delta_rule
from optimist_worker.core.recurrence.rows import RecurrentPass
from optimist_worker.core.recurrence.scan import DeltaTokens
from optimist_worker.core.recurrence.states import StateSpec

LAYER_TYPES = frozenset({"conv", "linear_attention"})
"""Of configs, where there is a layer like that; other kinds of models may mean others by it."""
_EPSILON = 1e-6
"""Of the length of queries and keys."""


class _Kind(NamedTuple):
    """A class of layers."""

    spec: Callable[[Any], StateSpec]
    compute: Callable[[Any, Tensor, RecurrentPass], Tensor]
    """From `[num_tokens, hidden_size]` to the same."""


def find_recurrent(module: Any) -> dict[int, StateSpec]:
    """Returns what the recurrent layers of a model keep, by their numbers."""
    return {part.layer_idx: kind.spec(part) for part, kind in _recurrent_parts(module)}


def replace_recurrent(module: Any) -> None:
    """Has the recurrent layers of a model compute with our states where a pass comes with them.

    That is the keyword `recurrent` of the model's call.
    """
    for part, kind in _recurrent_parts(module):
        part.forward = partial(_forward, part, kind)


def _recurrent_parts(module: Any) -> Iterator[tuple[Any, _Kind]]:
    for part in module.modules():
        if (kind := _KINDS.get(type(part).__name__)) is not None:
            yield part, kind


def _forward(
    part: Any,
    kind: _Kind,
    hidden_states: Tensor,
    *others: Any,
    recurrent: RecurrentPass | None = None,
    **named: Any,
) -> Tensor:
    if recurrent is None:
        output: Tensor = type(part).forward(part, hidden_states, *others, **named)
        return output
    return kind.compute(part, hidden_states[0], recurrent)[None]


def _spec_of_convolution(part: Any) -> StateSpec:
    return StateSpec(part.conv_kernel_size - 1, part.conv.in_channels)


def _compute_convolution(part: Any, hidden: Tensor, rows: RecurrentPass) -> Tensor:
    """LFM2's: gates before and after a convolution."""
    before, after, values = part.in_proj(hidden).chunk(3, -1)
    conv = part.conv
    mixed = convolve(rows, part.layer_idx, before * values, conv.weight[:, 0], conv.bias)
    output: Tensor = part.out_proj(after * mixed)
    return output


def _spec_of_delta(part: Any) -> StateSpec:
    heads = (part.num_v_heads, part.head_k_dim, part.head_v_dim)
    return StateSpec(part.conv_kernel_size - 1, part.conv_dim, heads)


class _Projections(NamedTuple):
    """What a gated delta layer makes of hidden states, `[num_tokens, n]` each."""

    mixed: Tensor
    """Queries, keys and values, before the convolution."""
    gates: Tensor
    speeds: Tensor
    """How fast states decay."""
    rates: Tensor


def _project(part: Any, hidden: Tensor) -> _Projections:
    """Qwen3.5's."""
    projections = (part.in_proj_qkv, part.in_proj_z, part.in_proj_a, part.in_proj_b)
    return _Projections(*(projection(hidden) for projection in projections))


def _project_by_head(part: Any, hidden: Tensor) -> _Projections:
    """Qwen3-Next's, which has all of a key's head one after the other."""
    mixed, others = part.in_proj_qkvz(hidden)[None], part.in_proj_ba(hidden)[None]
    *mixed, gates, rates, speeds = part.fix_query_key_value_ordering(mixed, others)
    parts = [torch.cat([each.flatten(2) for each in mixed], -1), gates, speeds, rates]
    return _Projections(*(each[0].flatten(1) for each in parts))


def _compute_delta(
    part: Any,
    hidden: Tensor,
    rows: RecurrentPass,
    project: Callable[[Any, Tensor], _Projections],
) -> Tensor:
    """A convolution, then the gated delta rule."""
    number, layer, conv = len(hidden), part.layer_idx, part.conv1d
    wide = torch.promote_types(hidden.dtype, torch.float32)
    projections = project(part, hidden)
    mixed = convolve(rows, layer, projections.mixed, conv.weight[:, 0], conv.bias)
    mixed = ACT2FN[part.activation](mixed).to(wide)
    sizes = [part.key_dim, part.key_dim, part.value_dim]
    *both, values = mixed.split(sizes, -1)
    queries, keys = (_unit(each.view(number, -1, part.head_k_dim)) for each in both)
    speeds = functional.softplus(projections.speeds.to(wide) + part.dt_bias)
    tokens = DeltaTokens(
        queries * part.head_k_dim**-0.5,
        keys,
        values.view(number, -1, part.head_v_dim),
        (-part.A_log.to(wide).exp() * speeds).exp(),
        projections.rates.sigmoid().to(wide),
    )
    recalled = run_delta_rule(rows, layer, tokens).to(hidden.dtype)
    gates = projections.gates.view(number, -1, part.head_v_dim)
    output: Tensor = part.out_proj(part.norm(recalled, gates).view(number, -1))
    return output


def _unit(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + _EPSILON)


_CONVOLUTION = _Kind(_spec_of_convolution, _compute_convolution)
_DELTA = _Kind(_spec_of_delta, partial(_compute_delta, project=_project))
_KINDS = {
    "Lfm2ShortConv": _CONVOLUTION,
    "Lfm2MoeShortConv": _CONVOLUTION,
    "Qwen3_5GatedDeltaNet": _DELTA,
    "Qwen3_5MoeGatedDeltaNet": _DELTA,
    "Qwen3NextGatedDeltaNet": _Kind(
        _spec_of_delta, partial(_compute_delta, project=_project_by_head)
    ),
}
