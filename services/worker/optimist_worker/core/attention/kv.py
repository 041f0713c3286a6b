"""The memory of keys and values, in blocks."""

from collections import Counter
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one attention layer keeps per token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """Keys and values of all layers; token `i` of block `b` lies at index `b * block_size + i`.

    There is one block more than can be given away, `trash_block`: padding is written there.
    """

    def __init__(
        self,
        layers: list[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.trash_block = num_blocks
        size = (num_blocks + 1) * block_size
        shapes = [(spec.num_kv_heads, spec.key_dim) for spec in layers]
        shapes += [(spec.num_kv_heads, spec.value_dim) for spec in layers]
        # A row reads only what was written for it, so the memory need not be cleared.
        self._memory = {
            shape: torch.empty((number, size, *shape), dtype=dtype, device=device)
            for shape, number in Counter(shapes).items()
        }
        parts = {shape: iter(memory.unbind()) for shape, memory in self._memory.items()}
        tensors = [next(parts[shape]) for shape in shapes]
        self.keys, self.values = tensors[: len(layers)], tensors[len(layers) :]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Moves keys and values of all layers, two operations for all that have the same shape.

        Args:
            source: Indices, `[num_tokens]`; all are read before any is written.
            target: Indices of the same number.
        """
        for memory in self._memory.values():
            memory.index_copy_(1, target, memory.index_select(1, source))


def block_bytes(layers: list[LayerSpec], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block in all layers, in bytes."""
    numbers = sum(spec.num_kv_heads * (spec.key_dim + spec.value_dim) for spec in layers)
    return block_size * numbers * dtype.itemsize
