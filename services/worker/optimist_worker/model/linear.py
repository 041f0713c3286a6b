"""Linear layers whose weights are laid out for the device once, when the model is loaded."""

import logging
from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from optimist_common.errors import SetupError, one_line
from optimist_worker.model.operations import MULTIPLY, make_panels
from optimist_worker.model.rounding import GROUP_SIZE, Bits, RoundedWeight, round_weight

logger = logging.getLogger(__name__)


class PlainLinear(nn.Module):
    """A product with the weights as they are."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[num_rows, in_features]` to `[num_rows, out_features]`."""
        return functional.linear(inputs, self.weight, self.bias)

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns the product and a residual, which may be overwritten."""
        return self(inputs).add_(residual)


class PanelLinear(nn.Module):
    """A product by our kernel for the CPU, with the weights in panels.

    An output is the same to the last bit alone and beside any other rows. Few rows take half of the
    time that oneDNN takes (two cores with AVX512_BF16).
    """

    panels: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.width, self.depth = weight.shape
        self.register_buffer("panels", make_panels(weight))
        self.register_buffer("bias", None if bias is None else bias.float())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in_features]` to `[..., out_features]`."""
        product: torch.Tensor = MULTIPLY(inputs, self.panels, self.width, self.bias, None)
        return product

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns the product and a residual."""
        total: torch.Tensor = MULTIPLY(inputs, self.panels, self.width, self.bias, residual)
        return total


class PackedLinear(nn.Module):
    """A product by oneDNN, with the weights reordered once for its kernels.

    These are the operators that PyTorch's inductor makes of a linear layer when it freezes
    (torch/_inductor/fx_passes/mkldnn_fusion.py); they are private, so see `can_pack`. Decoding
    reads each weight once per step; in this layout that takes three quarters of the time.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(weight, None))
        self.register_buffer("bias", bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[num_rows, in_features]` to `[num_rows, out_features]`."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self.bias, "none", [], ""
        )
        return product

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns the product and a residual."""
        total: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, residual, self.weight, self.bias, "add"
        )
        return total


class RoundedLinear(nn.Module):
    """A product with weights of 8 or 4 bits, in bfloat16 on the CPU.

    Few rows are multiplied by PyTorch's weight-only integer kernels, which read half or a quarter
    of the bytes; more rows by the same rounded weights in bfloat16, which is faster for them. Both
    compute one function but for the rounding of bfloat16. The kernels are private, so see
    `check_rounding`.
    """

    values: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, rounded: RoundedWeight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bits = rounded.bits
        self.register_buffer("values", rounded.values)
        self.register_buffer("scales", rounded.scales)
        self.register_buffer("bias", bias)
        self.wide = lay_out(rounded.weight, bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in_features]` to `[..., out_features]`."""
        rows = inputs if inputs.dim() == 2 else inputs.reshape(-1, inputs.shape[-1])
        rows = rows.contiguous()
        if not 0 < len(rows) <= MOST_NARROW_ROWS[self.bits]:
            wide: torch.Tensor = self.wide(inputs)
            return wide
        if self.bits == 4:
            multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
            products: torch.Tensor = multiply(rows, self.values, GROUP_SIZE, self.scales)
        else:
            products = torch.ops.aten._weight_int8pack_mm(rows, self.values, self.scales)
        if self.bias is not None:
            products += self.bias
        return products if rows is inputs else products.view(*inputs.shape[:-1], -1)

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns the product and a residual, which may be overwritten."""
        if len(inputs) > MOST_NARROW_ROWS[self.bits]:
            return self.wide.add(inputs, residual)
        return self(inputs).add_(residual)


MOST_NARROW_ROWS = {8: 4, 4: 8}
"""By bits: with more rows the integer kernel is slower than oneDNN (AVX-512, two cores)."""

Linear = PlainLinear | PanelLinear | PackedLinear | RoundedLinear


def join(linears: Sequence[nn.Linear], bits: Bits | None = None) -> Linear:
    """Returns one layer with the outputs of several, one after the other.

    With `bits`, the given layers get the rounded weights too, so that what computes with them can
    be compared.
    """
    weights = [linear.weight.detach() for linear in linears]
    # One alone may be shared with the embedding.
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if bits is None:
        return lay_out(weight, bias)
    rounded = round_weight(weight, bits)
    parts = torch.split(rounded.weight, [len(part) for part in weights])
    for linear, part in zip(linears, parts, strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    if weight.shape[1] % 16:
        # With such rows the kernel for 8 bits ends the process.
        return lay_out(rounded.weight, bias)
    return RoundedLinear(rounded, bias)


def lay_out(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> PlainLinear | PanelLinear | PackedLinear:
    """Returns the layer for weights as they are, of the layout that is fastest on their device."""
    if weight.shape[1] % 2 == 0 and _prefers_panels(weight):
        return PanelLinear(weight, bias)
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def check_rounding(bits: Bits) -> None:
    """Raises SetupError if this CPU and this PyTorch do not multiply right by rounded weights."""
    weight = _sample(64, torch.bfloat16)
    reason = "the product of a small matrix is wrong"
    try:
        for number in {bits, 8}:
            rounded = round_weight(weight, number)
            if not _is_right(RoundedLinear(rounded, weight[0]), rounded.weight, weight[0], 0.1):
                raise RuntimeError(reason)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise SetupError(
            f"--quantization: PyTorch {torch.__version__} has no integer kernels that work on "
            f"this CPU ({one_line(error)}); choose none"
        ) from None


def _prefers_panels(weight: torch.Tensor) -> bool:
    """Returns whether our kernel is the fastest: with vectors of 512 bits and without AMX."""
    if MULTIPLY.kernel_for(weight) is None:
        return False
    if weight.dtype == torch.float32:
        return torch.cpu._is_avx512_supported()
    return torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Returns whether this CPU and this PyTorch multiply right by packed weights of a dtype."""
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_available or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    weight = _sample(64, dtype)
    try:
        packed = PackedLinear(weight, weight[0])
        return _is_right(packed, weight, weight[0], torch.finfo(dtype).eps * 64)
    except (RuntimeError, AttributeError, TypeError) as error:
        logger.warning("weights are not packed for oneDNN: %s", one_line(error))
        return False


def _sample(rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(rows * 64, dtype=torch.float32).sin_().view(rows, 64).to(dtype)


def _is_right(linear: Linear, weight: torch.Tensor, bias: torch.Tensor, most: float) -> bool:
    """Compares what a layer computes of three rows with the product by its weight."""
    inputs = _sample(3, weight.dtype)
    found = torch.stack([linear(inputs), linear.add(inputs, inputs.clone())])
    product = functional.linear(inputs.double(), weight.double(), bias.double())
    wanted = torch.stack([product, product + inputs.double()])
    return torch.allclose(found.double(), wanted, rtol=0.02, atol=most)
