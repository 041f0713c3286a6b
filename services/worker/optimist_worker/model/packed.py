"""Matrices that are stored in 8 bits or fewer, and what their numbers mean.

A value is `(stored - zero point) * scale`; a scale, and a zero point if there are any, stand for a
block of the matrix. Layouts: compressed-tensors, FP8 as DeepSeek and Qwen publish it, GPTQ
(AutoGPTQ, GPTQModel) and AWQ (AutoAWQ's GEMM).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Block = tuple[int, int]
"""Outputs and inputs that share a scale."""
Part = Any
"""A tensor of a safetensors file that is read when it is indexed."""
MATRICES = ("weight", "weight_packed", "qweight")
SCALES = ("weight_scale", "weight_scale_inv", "scales")
_ROUNDED = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


class PackedError(Exception):
    """Stored numbers whose meaning is not known; the text names the tensor."""


class Stored(NamedTuple):
    """The numbers of a matrix, as they are stored."""

    values: torch.Tensor
    """`[out_features, in_features]`."""
    scales: torch.Tensor
    """One for each block, `[grid_rows, grid_columns]`."""
    zeros: torch.Tensor | None
    groups: torch.Tensor | None
    """Which column of the grid each input has, if that is not by blocks; `[in_features]`."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix that is unpacked when it is indexed, as transformers does with safetensors' own."""

    name: str
    """The layer's, for messages."""
    shape: Block
    block: Block
    dtype: torch.dtype
    """That it is unpacked to; single or double precision."""
    read: Callable[[], Stored]

    def get_shape(self) -> list[int]:
        """Returns outputs and inputs, as a slice of safetensors does."""
        return list(self.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Returns a part of the values, all of which are computed.

        Raises:
            PackedError: An input is of a group that there is not.
        """
        stored = self.read()
        if stored.groups is not None and not _are_indices(stored.groups, stored.scales.shape[1]):
            raise PackedError(f"{self.name} has no scales for some groups of inputs in g_idx")
        values = stored.values.to(self.dtype, memory_format=torch.contiguous_format)
        if stored.zeros is not None:
            values -= self._spread(stored.zeros, stored.groups)
        return values.mul_(self._spread(stored.scales, stored.groups))[index]

    def _spread(self, grid: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
        """Returns a grid's number for each value, or what broadcasts to that."""
        if grid.dtype == torch.uint8:
            # Powers of two, by their exponents.
            grid = grid.view(torch.float8_e8m0fnu)
        grid = grid.to(self.dtype)
        rows, columns = (
            torch.arange(n) // size for n, size in zip(self.shape, self.block, strict=True)
        )
        if grid.shape[0] not in (1, self.shape[0]):
            grid = grid[rows]
        if groups is not None or grid.shape[1] > 1:
            grid = grid.index_select(1, columns if groups is None else groups)
        return grid


class Layout(NamedTuple):
    """What a config says of packed matrices."""

    method: str
    blocks: Collection[Block] = ()
    """That may share a scale, beside a whole matrix and one output of it."""
    bits: Collection[int] = ()
    """That pack-quantized matrices may have."""
    zero_offset: int = 0
    """What is added to zero points as they are stored."""


class PackedModule:
    """The stored tensors of one layer."""

    def __init__(self, name: str, parts: Mapping[str, Part], layout: Layout) -> None:
        """Takes the tensors by the last part of their names."""
        self._name, self._parts, self._layout = name, parts, layout

    def matrix(self, dtype: torch.dtype) -> PackedMatrix:
        """Returns the layer's matrix.

        Raises:
            PackedError: The tensors do not fit together, or mean something that is not known.
        """
        if "weight_packed" in self._parts:
            shape, grid, read = self._compressed()
        elif "qweight" in self._parts:
            shape, grid, read = self._gptq() if self._layout.method == "gptq" else self._awq()
        else:
            shape, grid, read = self._scaled()
        has_groups = bool({"g_idx", "weight_g_idx"} & self._parts.keys())
        block = (1, shape[1]) if has_groups else self._find_block(shape, grid)
        wide = torch.promote_types(dtype, torch.float32)
        return PackedMatrix(self._name, shape, block, wide, read)

    def _scaled(self) -> tuple[Block, Block, Callable[[], Stored]]:
        """Reads a matrix of FP8 or 8-bit integers, as it lies."""
        weight, dtype = self._parts["weight"], self._parts["weight"].get_dtype()
        may_be_integers = self._layout.method == "compressed-tensors"
        if dtype not in _ROUNDED or (dtype == "I8" and not may_be_integers):
            raise PackedError(f"{self._name}.weight is {dtype} and has a scale, which is unknown")
        (scale,) = (self._parts[key] for key in SCALES if key in self._parts)
        zeros = self._parts.get("weight_zero_point")
        shape, sizes = self._matrix_shape("weight"), scale.get_shape()
        # One for all may have no dimension, one for each output only one.
        grid = (sizes[0], 1) if len(sizes) == 1 else tuple(sizes) or (1, 1)
        if len(grid) != 2 or (zeros is not None and zeros.get_shape() != sizes):
            raise PackedError(f"{self._name}: scales have the shape {sizes}, zero points another")

        def read() -> Stored:
            found = None if zeros is None else zeros[...].view(grid)
            return Stored(weight[...], scale[...].view(grid), found, None)

        return shape, grid, read

    def _compressed(self) -> tuple[Block, Block, Callable[[], Stored]]:
        """Reads pack-quantized: inputs side by side in 32 bits, of zero points outputs."""
        packed, scale = self._part("weight_packed"), self._part("weight_scale")
        outputs, inputs = self._part("weight_shape")[...].tolist()
        width, grid = self._matrix_shape("weight_packed")[1], self._matrix_shape("weight_scale")
        fitting = [bits for bits in self._layout.bits if _words(inputs, bits) == width]
        if len(fitting) != 1 or 32 % fitting[0]:
            raise PackedError(
                f"{self._name}.weight_packed has {width} words for {inputs} inputs; that must be "
                "2, 4 or 8 bits each, and num_bits in config.json"
            )
        (bits,) = fitting
        self._require("weight_packed", outputs, width)
        groups = self._groups("weight_g_idx", inputs)
        zeros = self._parts.get("weight_zero_point")
        if zeros is not None:
            self._require("weight_zero_point", _words(outputs, bits), grid[1])

        def read() -> Stored:
            offset = 1 << (bits - 1)
            found = None if zeros is None else _unpack(zeros[...], bits, 0, outputs) - offset
            values = _unpack(packed[...], bits, 1, inputs) - offset
            return Stored(values, scale[...], found, None if groups is None else groups[...])

        return (outputs, inputs), grid, read

    def _gptq(self) -> tuple[Block, Block, Callable[[], Stored]]:
        """Reads GPTQ's: transposed, inputs one above the other in 32 bits."""
        (groups, outputs), bits = self._matrix_shape("scales"), self._bits()
        weight, scale, zeros = self._part("qweight"), self._part("scales"), self._part("qzeros")
        inputs = self._matrix_shape("qweight")[0] * 32 // bits
        self._require("qweight", _words(inputs, bits), outputs)
        by_input, offset = self._groups("g_idx", inputs), self._layout.zero_offset

        def read() -> Stored:
            values = _unpack(weight[...], bits, 0, inputs).t()
            found = _unpack(zeros[...], bits, 1, outputs).t() + offset
            by = None if by_input is None else by_input[...]
            return Stored(values, scale[...].t(), found, by)

        return (outputs, inputs), (outputs, groups), read

    def _awq(self) -> tuple[Block, Block, Callable[[], Stored]]:
        """Reads AWQ's: transposed, eight outputs in 32 bits in an order of their own."""
        (groups, outputs), bits = self._matrix_shape("scales"), self._bits()
        weight, scale, zeros = self._part("qweight"), self._part("scales"), self._part("qzeros")
        inputs = self._matrix_shape("qweight")[0]
        self._require("qweight", inputs, _words(outputs, bits))
        if bits != 4 or outputs % 8:
            raise PackedError(f"{self._name}: AWQ's order is known for 4 bits only, not {bits}")

        def unpack(packed: torch.Tensor) -> torch.Tensor:
            found = _unpack(packed, bits, 1, outputs)
            return found.view(-1, outputs // 8, 8)[:, :, _AWQ_ORDER].flatten(1).t()

        def read() -> Stored:
            return Stored(unpack(weight[...]), scale[...].t(), unpack(zeros[...]), None)

        return (outputs, inputs), (outputs, groups), read

    def _bits(self) -> int:
        """Returns how many bits values have, which is in the shape of the zero points."""
        groups, outputs = self._matrix_shape("scales")
        width = self._matrix_shape("qzeros")[1]
        found = [bits for bits in (2, 4, 8) if _words(outputs, bits) == width]
        if len(found) != 1:
            raise PackedError(f"{self._name}: weights of 2, 4 and 8 bits are known, and no others")
        self._require("qzeros", groups, width)
        return found[0]

    def _groups(self, key: str, inputs: int) -> Part | None:
        """Returns which group each input is of, if inputs were put in another order."""
        if key in self._parts and self._part(key).get_shape() != [inputs]:
            raise PackedError(f"{self._name}.{key} must have one number for each input ({inputs})")
        return self._parts.get(key)

    def _find_block(self, shape: Block, grid: Block) -> Block:
        """Returns what a scale stands for, of what the config names."""
        blocks = {shape, (1, shape[1]), *self._layout.blocks}
        found = {
            (min(rows, shape[0]), min(columns, shape[1]))
            for rows, columns in blocks
            if (-(-shape[0] // rows), -(-shape[1] // columns)) == grid
        }
        if len(found) != 1:
            raise PackedError(
                f"{self._name} has {list(shape)} weights and {list(grid)} scales, which fit none "
                f"of the blocks in config.json ({sorted(self._layout.blocks)})"
            )
        return found.pop()

    def _part(self, key: str) -> Part:
        if key not in self._parts:
            raise PackedError(f"{self._name}.{key} is missing")
        return self._parts[key]

    def _matrix_shape(self, key: str) -> Block:
        sizes = self._part(key).get_shape()
        if len(sizes) != 2:
            raise PackedError(f"{self._name}.{key} has the shape {sizes}; it must be a matrix")
        return sizes[0], sizes[1]

    def _require(self, key: str, *sizes: int) -> None:
        if (found := self._part(key).get_shape()) != list(sizes):
            raise PackedError(f"{self._name}.{key} has the shape {found}; {list(sizes)} is right")


def _are_indices(numbers: torch.Tensor, size: int) -> bool:
    return bool(((numbers >= 0) & (numbers < size)).all())


def _words(number: int, bits: int) -> int:
    """Returns how many words of 32 bits hold some numbers."""
    return -(-number * bits // 32)


def _unpack(packed: torch.Tensor, bits: int, axis: int, number: int) -> torch.Tensor:
    """Returns the numbers, from 0, that words of 32 bits hold along an axis, the lowest first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    shifts = shifts.view(-1, *[1] * (1 - axis))
    spread = packed.unsqueeze(axis + 1) >> shifts & ((1 << bits) - 1)
    return spread.flatten(axis, axis + 1).narrow(axis, 0, number)
