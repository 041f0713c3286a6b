"""The states of recurrent layers, one per slot."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What one recurrent layer keeps of a sequence, whatever its length."""

    num_inputs: int
    """Last inputs of its convolution: one less than the convolution is wide."""
    num_channels: int
    """Of the convolution."""
    heads: tuple[int, int, int] | None = None
    """Number of heads, and the rows (keys) and columns (values) of the matrix of each; None if a
    layer has the convolution alone."""


class Group(NamedTuple):
    """The layers that keep the same, and their states in slots."""

    layers: list[int]
    inputs: Tensor
    """`[num_layers, num_slots, num_inputs, num_channels]`, the last input last."""
    matrices: Tensor | None
    """`[num_layers, num_slots, heads, key_dim, value_dim]`, in float32 or wider."""


class StatePool:
    """States of all recurrent layers in all slots: what is left of each slot's computed tokens.

    A pass moves the states over known tokens, of which none is ever taken back. Over drafts they
    move when it is settled which were accepted: see `RecurrentPass`.
    """

    def __init__(
        self,
        specs: dict[int, StateSpec],
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Takes the memory for layers, named by their numbers in the model."""
        wide = torch.promote_types(dtype, torch.float32)
        self.device = device
        self.groups: list[Group] = []
        self._places: dict[int, tuple[Group, int]] = {}
        for spec in dict.fromkeys(specs.values()):
            layers = [layer for layer, one in specs.items() if one == spec]
            shape = (len(layers), num_slots)
            inputs = torch.zeros(
                (*shape, spec.num_inputs, spec.num_channels), dtype=dtype, device=device
            )
            matrices = None
            if spec.heads is not None:
                matrices = torch.zeros((*shape, *spec.heads), dtype=wide, device=device)
            group = Group(layers, inputs, matrices)
            self.groups.append(group)
            self._places |= {layer: (group, index) for index, layer in enumerate(layers)}

    def inputs(self, layer: int) -> Tensor:
        """Returns a layer's last inputs, `[num_slots, num_inputs, num_channels]`, to change."""
        group, index = self._places[layer]
        return group.inputs[index]

    def matrices(self, layer: int) -> Tensor:
        """Returns a layer's matrices, `[num_slots, heads, key_dim, value_dim]`, to change."""
        group, index = self._places[layer]
        if group.matrices is None:
            raise ValueError(f"layer {layer} has a convolution alone")
        return group.matrices[index]

    def clear(self, slot: int) -> None:
        """Sets a slot's states to those before the first token."""
        for group in self.groups:
            group.inputs[:, slot] = 0
            if group.matrices is not None:
                group.matrices[:, slot] = 0


def state_bytes(specs: dict[int, StateSpec], dtype: torch.dtype) -> int:
    """Memory of one slot's states in all layers, in bytes."""
    wide = torch.promote_types(dtype, torch.float32)
    number = 0
    for spec in specs.values():
        number += spec.num_inputs * spec.num_channels * dtype.itemsize
        if spec.heads is not None:
            heads, rows, columns = spec.heads
            number += heads * rows * columns * wide.itemsize
    return number
