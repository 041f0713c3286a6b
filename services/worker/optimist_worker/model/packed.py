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
"""Numbers of outputs and inputs, such as those that share a scale."""
WHOLE: Block = (0, 0)
"""One scale for all; 0 stands for as many as there are."""
BY_OUTPUT: Block = (1, 0)
Part = Any
"""A tensor of a safetensors file that is read when it is indexed."""
MATRICES = ("weight", "weight_packed", "qweight")
SCALES = ("weight_scale", "weight_scale_inv", "scales")
_FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_SCALES = ("F64", "F32", "F16", "BF16", "F8_E8M0", "U8")
_INDICES = ("I32", "I64")
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

        Raises PackedError if an input is of a group that there is not.
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
    blocks: Collection[Block] = (WHOLE, BY_OUTPUT)
    """What shares a scale, in one matrix or another."""
    bits: Collection[int] = ()
    """That pack-quantized matrices may have."""
    zero_offset: int = 0
    """What is added to zero points as they are stored."""
    needed: Collection[str] = ()
    """Tensors that each matrix has beside scales."""


class PackedModule:
    """The stored tensors of one layer."""

    def __init__(self, name: str, parts: Mapping[str, Part], layout: Layout) -> None:
        """Takes the tensors by the last part of their names."""
        self._name, self._parts, self._layout = name, parts, layout

    def matrix(self, dtype: torch.dtype) -> PackedMatrix:
        """Returns the layer's matrix; raises PackedError if its tensors do not fit together."""
        for key in self._layout.needed:
            self._part(key)
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
        has_integers = self._layout.method == "compressed-tensors"
        weight = self._part("weight", *_FP8, *(("I8",) if has_integers else ()))
        (key,) = (key for key in SCALES if key in self._parts)
        scale, zeros = self._part(key, *_SCALES), self._parts.get("weight_zero_point")
        shape, sizes = self._matrix_shape("weight"), scale.get_shape()
        # One for all may have no dimension, one for each output only one.
        grid = (sizes[0], 1) if len(sizes) == 1 else tuple(sizes) or (1, 1)
        if len(grid) != 2:
            raise PackedError(f"{self._name}.{key} has the shape {sizes}; it must be a matrix")
        if zeros is not None:
            self._require("weight_zero_point", *sizes)

        def read() -> Stored:
            found = None if zeros is None else zeros[...].view(grid)
            return Stored(weight[...], scale[...].view(grid), found, None)

        return shape, grid, read

    def _compressed(self) -> tuple[Block, Block, Callable[[], Stored]]:
        """Reads pack-quantized: inputs side by side in 32 bits, of zero points outputs."""
        packed, scale = self._packed_words("weight_packed"), self._part("weight_scale", *_SCALES)
        shape = self._part("weight_shape", *_INDICES)
        self._require("weight_shape", 2)
        outputs, inputs = shape[...].tolist()
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
        zeros = None
        if "weight_zero_point" in self._parts:
            zeros = self._packed_words("weight_zero_point")
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
        weight, zeros = self._packed_words("qweight"), self._packed_words("qzeros")
        scale = self._part("scales", *_SCALES)
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
        weight, zeros = self._packed_words("qweight"), self._packed_words("qzeros")
        scale = self._part("scales", *_SCALES)
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
            raise PackedError(
                f"{self._name}.qzeros has {width} words for {outputs} outputs; that must be 2, 4 "
                "or 8 bits each"
            )
        self._require("qzeros", groups, width)
        return found[0]

    def _groups(self, key: str, inputs: int) -> Part | None:
        """Returns which group each input is of, if inputs were put in another order."""
        if key not in self._parts:
            return None
        self._require(key, inputs)
        return self._part(key, *_INDICES)

    def _find_block(self, shape: Block, grid: Block) -> Block:
        """Returns what a scale stands for, of what the config names."""
        blocks = {
            (min(rows or shape[0], shape[0]), min(columns or shape[1], shape[1]))
            for rows, columns in self._layout.blocks
        }
        found = {
            block
            for block in blocks
            if (-(-shape[0] // block[0]), -(-shape[1] // block[1])) == grid
        }
        if len(found) != 1:
            raise PackedError(
                f"{self._name} has {list(shape)} weights and {list(grid)} scales; the blocks that "
                f"share one are {', '.join(map(str, sorted(blocks))) or 'none'} by config.json"
            )
        return found.pop()

    def _part(self, key: str, *dtypes: str) -> Part:
        """Returns a tensor of one of some dtypes."""
        if key not in self._parts:
            raise PackedError(f"{self._name}.{key} is missing")
        found = self._parts[key].get_dtype()
        if dtypes and found not in dtypes:
            raise PackedError(f"{self._name}.{key} is {found}; it must be {' or '.join(dtypes)}")
        return self._parts[key]

    def _packed_words(self, key: str) -> Part:
        return self._part(key, "I32")

    def _matrix_shape(self, key: str) -> Block:
        sizes = self._part(key).get_shape()
        if len(sizes) != 2 or 0 in sizes:
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
