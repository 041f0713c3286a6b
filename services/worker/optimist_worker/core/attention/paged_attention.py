"""Attention of a flat batch over keys and values in blocks, for any decoder of transformers."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from optimist_worker.core.attention import sdpa
from optimist_worker.core.attention.batch import AttentionBatch

NAME = "optimist_paged"
"""Under which the function is registered with transformers' AttentionInterface."""


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: AttentionBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Writes the batch's keys and values to the pool, then lets every row attend to its own.

    Args:
        module: The attention layer; its `layer_idx` names the layer of the pool.
        query: `[1, num_heads, num_tokens, key_dim]`; tokens that the batch does not have are
            padding, whose output is 0.
        key: `[1, num_kv_heads, num_tokens, key_dim]`.
        value: `[1, num_kv_heads, num_tokens, value_dim]`.
        attention_mask: None; masks follow from the batch.
        paged: The batch, as the model's caller passed it.
        scaling: Factor of the scores; 1 / sqrt(key_dim) if None.
        sliding_window: A token sees this many positions, its own included; all if None.
        softcap: Scores become softcap * tanh(score / softcap) (Gemma 2).
        s_aux: Attention sinks, one score per head that takes its share of the softmax (gpt-oss).

    Returns:
        `[1, num_tokens, num_heads, value_dim]`, and None in place of attention weights.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = paged.pool.keys[layer], paged.pool.values[layer]
    write, attend = _implementation(query.device, query.dtype)
    num_tokens = len(paged.slot_mapping)
    num_padded = query.shape[2] - num_tokens
    if num_padded:
        query, key, value = (each[:, :, :num_tokens] for each in (query, key, value))
    write(key, value, keys, values, paged.slot_mapping)
    output = attend(
        query,
        keys,
        values,
        paged,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    if num_padded:
        output = torch.nn.functional.pad(output, (0, 0, 0, 0, 0, num_padded))
    return output, None


@cache
def _implementation(
    device: torch.device, dtype: torch.dtype
) -> tuple[Callable[..., None], Callable[..., torch.Tensor]]:
    """Returns what writes keys and values and what attends: Triton kernels where they can run.

    They need tensor cores of Ampere or later, and have no float64.
    """
    if (
        device.type == "cuda"
        and dtype != torch.float64
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    ):
        # Triton is not installed with a worker for the CPU.
        from optimist_worker.core.attention import kv_write
        from optimist_worker.core.attention import launch as attention_launch

        return kv_write.write, attention_launch.attend
    return _write, sdpa.attend


def _write(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    keys.index_copy_(0, slot_mapping, key[0].transpose(0, 1))
    values.index_copy_(0, slot_mapping, value[0].transpose(0, 1))
