"""What a decoder layer computes besides attention, in plain PyTorch.

On CUDA each is one kernel of `kernels.py`, and on the CPU some are kernels of `cpu_kernels`;
arguments and results are the same.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from optimist_worker.core.attention.paged_attention import WRITE
from optimist_worker.core.operation import Operation


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019)."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        """Norms vectors of the weight's size; the weight may be wider than what it multiplies."""
        super().__init__()
        self.register_buffer("weight", weight)
        self._shape, self.epsilon = weight.shape, epsilon
        # As the CPU kernels read it; not a buffer, since it follows from one.
        self.wide_weight = weight.float().contiguous()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Norms `[..., size]`."""
        if inputs.dtype == torch.float64:
            # transformers norms in float32 whatever the dtype, and so do ranks that share layers.
            normed = functional.rms_norm(inputs.float(), self._shape, None, self.epsilon)
            return normed.double() * self.weight
        # A weight that is wider than the inputs does not fit into their dtype: 1 + a small number.
        wide = inputs.to(self.weight.dtype)
        return functional.rms_norm(wide, self._shape, self.weight, self.epsilon).to(inputs.dtype)


class Heads(NamedTuple):
    """What a layer knows of its heads."""

    num_queries: int
    num_keys: int
    query_norm: Norm | None
    """Of each head of queries; the keys have one too, or neither has."""
    key_norm: Norm | None


PANEL_WIDTH = 32
"""Outputs whose weights lie side by side."""


class Panels(NamedTuple):
    """The weights of a linear layer, 32 outputs side by side; zeros fill up the last panel."""

    values: torch.Tensor
    """`[num_panels, in_features, 32]` in float32. Otherwise, since processors multiply pairs of
    bfloat16, `[num_panels, in_features / 2, 32, 2]` in bfloat16 or int8. With 4 bits, the numbers
    of the last 16 outputs are the high bits of those of the first, `[.., 32]` in uint8.
    """
    width: int
    """Outputs."""
    depth: int
    """Inputs."""
    scales: torch.Tensor | None = None
    """What integers are multiplied by, bfloat16 `[num_panels, num_groups, 32]`."""
    zeros: torch.Tensor | None = None
    """What number 8 of 4 bits stands for, of the same shape."""

    @property
    def bits(self) -> int:
        """8 or 4; 0 for floating-point numbers."""
        return {torch.int8: 8, torch.uint8: 4}.get(self.values.dtype, 0)

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.depth if self.scales is None else self.depth // self.scales.shape[1]


def make_panels(weight: torch.Tensor) -> Panels:
    """Lays weights `[out_features, in_features]` out, of an even number of inputs in bfloat16."""
    step = 1 if weight.dtype == torch.float32 else 2
    filled = _fill_up(weight)
    shape = len(filled) // PANEL_WIDTH, PANEL_WIDTH, weight.shape[1] // step, step
    values = filled.reshape(shape).transpose(1, 2).contiguous()
    return Panels(values[..., 0] if step == 1 else values, *weight.shape)


def make_rounded_panels(
    numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
) -> Panels:
    """Lays out int8 numbers `[out_features, in_features]`, from 0 to 15 if there are zeros.

    Scales and zeros are bfloat16 `[num_groups, out_features]`.
    """
    panels = make_panels(numbers)
    if zeros is not None:
        low, high = panels.values.flatten(2).to(torch.uint8).chunk(2, 2)
        panels = panels._replace(values=low | high << 4)
    columns = (
        None if each is None else _fill_up(each.t()).reshape(-1, PANEL_WIDTH, len(each)).mT
        for each in (scales, zeros)
    )
    return Panels(*panels[:3], *(None if each is None else each.contiguous() for each in columns))


def _fill_up(rows: torch.Tensor) -> torch.Tensor:
    return functional.pad(rows, (0, 0, 0, -len(rows) % PANEL_WIDTH))


def _read_panels(panels: Panels) -> torch.Tensor:
    """Returns the weights `[out_features, in_features]`; of integers in bfloat16."""
    values = panels.values
    if panels.bits == 4:
        values = torch.cat([values & 15, values >> 4], 2).unsqueeze(3).view(*values.shape, 2)
    if values.dim() == 4:
        values = values.transpose(2, 3).flatten(1, 2)
    if panels.scales is not None:
        shape = len(values), -1, panels.group, PANEL_WIDTH
        wide = values.float().reshape(shape)
        scales = panels.scales.float()[:, :, None]
        if panels.zeros is None:
            wide = wide * scales
        else:
            wide = (wide - 8.0) * scales + panels.zeros.float()[:, :, None]
        values = wide.flatten(1, 2).to(torch.bfloat16)
    return values.transpose(1, 2).flatten(0, 1)[: panels.width]


def product_addresses(panels: Panels, bias: torch.Tensor | None) -> list[int]:
    """Returns what the CPU kernels take of a linear layer."""
    tensors = panels.values, panels.scales, panels.zeros, bias
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    return [*addresses, panels.depth, panels.width, panels.bits, panels.group]


def multiply(
    inputs: torch.Tensor,
    panels: Panels,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Multiplies `[..., in_features]` by the weights of a linear layer.

    Inputs are bfloat16 if the weights are integers; a bias is float32, `[out_features]`; a residual
    `[..., out_features]` is added to the product.
    """
    wide_bias = None if bias is None else bias.to(inputs.dtype)
    product = functional.linear(inputs, _read_panels(panels), wide_bias)
    return product if residual is None else product + residual


def norm(states: torch.Tensor, outer: Norm) -> torch.Tensor:
    """Norms `[num_tokens, hidden_size]`."""
    normed: torch.Tensor = outer(states)
    return normed


def add_norm(
    inputs: torch.Tensor, linear: Any, residual: torch.Tensor, inner: Norm | None, outer: Norm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds `inner(linear(inputs))` to a residual and norms the sum; returns both.

    `linear` is a layer of `linear.py`; without an inner norm, what it gives is added as it is.
    """
    total = add(inputs, linear, residual, inner)
    return total, NORM(total, outer)


def add(
    inputs: torch.Tensor, linear: Any, residual: torch.Tensor, inner: Norm | None
) -> torch.Tensor:
    """Adds `inner(linear(inputs))` to a residual, which may be overwritten; see `add_norm`."""
    total: torch.Tensor
    total = (
        linear.add(inputs, residual) if inner is None else NORM(linear(inputs), inner) + residual
    )
    return total


def rotate_and_write(
    projected: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """Norms and rotates queries and keys (Su et al. 2021), and writes keys and values to the pool.

    `projected` has queries, keys and values, `[num_tokens, num_queries + 2 * num_keys, head_dim]`,
    cosine and sine are `[1, num_tokens, head_dim]`, the layer's keys and values in the pool
    `[num_indices, num_keys, head_dim]`. Returns the queries, `[1, num_queries, num_tokens,
    head_dim]`.
    """
    sizes = [heads.num_queries, heads.num_keys, heads.num_keys]
    query, key, value = torch.split(projected, sizes, 1)
    if heads.query_norm is not None and heads.key_norm is not None:
        rotated = torch.cat([heads.query_norm(query), heads.key_norm(key)], 1)
    else:
        rotated = projected[:, : heads.num_queries + heads.num_keys]
    query, key = torch.split(_rotate(rotated, cosine, sine), sizes[:2], 1)
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    WRITE(key, value, keys, values, slot_mapping)
    return query


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotates queries or keys, `[num_tokens, num_heads, head_dim]`."""
    half = heads.shape[-1] // 2
    sine, rotated = sine[0, :, None], heads * cosine[0, :, None]
    rotated[..., :half].addcmul_(heads[..., half:], sine[..., :half], value=-1.0)
    rotated[..., half:].addcmul_(heads[..., :half], sine[..., half:])
    return rotated


def gate(gate_up: torch.Tensor, activate: Any) -> torch.Tensor:
    """Multiplies the activated first half of `[num_tokens, 2 * size]` by the second half."""
    first, second = gate_up.chunk(2, -1)
    product: torch.Tensor = activate(first) * second
    return product


ACTIVATIONS = {"SiLUActivation": "silu", "SiLU": "silu", "GELUTanh": "gelu_tanh"}
"""Those that the kernels compute, by the name of transformers' or PyTorch's class."""

_KERNELS, _CPU = "optimist_worker.model.kernels", "optimist_worker.cpu_kernels.launch"
MULTIPLY = Operation("multiply", multiply, None, f"{_CPU}:multiply")
NORM = Operation("norm", norm, f"{_KERNELS}:norm", f"{_CPU}:norm")
ADD_NORM = Operation("add_norm", add_norm, f"{_KERNELS}:add_norm")
ADD = Operation("add", add, f"{_KERNELS}:add")
ROTATE_AND_WRITE = Operation(
    "rotate_and_write",
    rotate_and_write,
    f"{_KERNELS}:rotate_and_write",
    f"{_CPU}:rotate_and_write",
)
GATE = Operation("gate", gate, f"{_KERNELS}:gate", f"{_CPU}:gate")
