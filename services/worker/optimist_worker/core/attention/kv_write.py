"""Writes keys and values of a pass into the pool on a GPU, both in one launch."""

import torch
import triton
import triton.language as tl

from optimist_worker.core.attention.launch import tile_side


def write(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Is `paged_attention._write`; of padding with one index, any is written."""
    key = key if key.stride(3) == 1 else key.contiguous()
    value = value if value.stride(3) == 1 else value.contiguous()
    num_kv_heads, key_dim = keys.shape[1:]
    value_dim = values.shape[2]
    with torch.cuda.device_of(key):
        write_token[(len(slot_mapping),)](
            key,
            value,
            keys,
            values,
            slot_mapping,
            key.stride(1),
            key.stride(2),
            value.stride(1),
            value.stride(2),
            key_dim,
            value_dim,
            num_kv_heads * key_dim,
            num_kv_heads * value_dim,
            tile_side(num_kv_heads * key_dim),
            tile_side(num_kv_heads * value_dim),
        )


@triton.jit
def write_token(
    key,
    value,
    keys,
    values,
    slot_mapping,
    key_head_stride,
    key_token_stride,
    value_head_stride,
    value_token_stride,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    key_size: tl.constexpr,
    value_size: tl.constexpr,
    key_tile: tl.constexpr,
    value_tile: tl.constexpr,
):
    """Copies the key and the value of one token, all heads; the grid is `[num_tokens]`."""
    token = tl.program_id(0).to(tl.int64)
    index = tl.load(slot_mapping + token)
    lane = tl.arange(0, key_tile)
    source = token * key_token_stride + lane // key_dim * key_head_stride + lane % key_dim
    numbers = tl.load(key + source, mask=lane < key_size)
    tl.store(keys + index * key_size + lane, numbers, mask=lane < key_size)
    lane = tl.arange(0, value_tile)
    source = token * value_token_stride + lane // value_dim * value_head_stride + lane % value_dim
    numbers = tl.load(value + source, mask=lane < value_size)
    tl.store(values + index * value_size + lane, numbers, mask=lane < value_size)
