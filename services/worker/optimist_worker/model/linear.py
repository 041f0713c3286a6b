"""Linear layers whose weights are laid out for the device once, when the model is loaded."""

import logging
from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from optimist_common.errors import SetupError, one_line
from optimist_worker.model.operations import MULTIPLY, Panels, make_panels
from optimist_worker.model.rounding import Bits, round_weight

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
    """A product by our kernel for the CPU; the weights lie in panels, and may have 8 or 4 bits.

    An output is the same to the last bit alone and beside any other rows.
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    zeros: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, panels: Panels, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bits, self._width, self._depth = panels.bits, panels.width, panels.depth
        self.register_buffer("values", panels.values)
        self.register_buffer("scales", panels.scales)
        self.register_buffer("zeros", panels.zeros)
        self.register_buffer("bias", None if bias is None else bias.float())

    @property
    def panels(self) -> Panels:
        """The weights."""
        return Panels(self.values, self._width, self._depth, self.scales, self.zeros)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in_features]` to `[..., out_features]`; by integers in bfloat16."""
        rows = inputs.to(torch.bfloat16) if self.bits else inputs
        product: torch.Tensor = MULTIPLY(rows, self.panels, self.bias, None)
        return product.to(inputs.dtype)

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns the product and a residual."""
        total: torch.Tensor = MULTIPLY(inputs, self.panels, self.bias, residual)
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


Linear = PlainLinear | PanelLinear | PackedLinear


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
    return PanelLinear(rounded.panels, bias)


def lay_out(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> PlainLinear | PanelLinear | PackedLinear:
    """Returns the layer for weights as they are, of the layout that is fastest on their device."""
    if weight.shape[1] % 2 == 0 and prefers_panels(weight):
        return PanelLinear(make_panels(weight), bias)
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def takes_rounded_panels(weight: torch.Tensor) -> bool:
    """Returns whether our kernel multiplies by weights that are rounded to 8 or 4 bits."""
    narrow = torch.empty(0, dtype=torch.bfloat16)
    is_even = weight.shape[-1] % 2 == 0
    return weight.is_cpu and is_even and MULTIPLY.kernel_for(narrow) is not None


def check_rounding() -> None:
    """Raises SetupError if there is no kernel for rounded weights."""
    if not takes_rounded_panels(torch.empty(0)):
        raise SetupError(
            "--quantization: the CPU kernels do not work here, or --kernels leaves them out (see "
            "the log); choose none"
        )


def prefers_panels(weight: torch.Tensor) -> bool:
    """Returns whether our kernel multiplies.

    In bfloat16 it does wherever it works: with AMX oneDNN would multiply many rows in less time,
    but in another order than one row. In float32 oneDNN is faster with AVX2 alone.
    """
    if MULTIPLY.kernel_for(weight) is None:
        return False
    return weight.dtype == torch.bfloat16 or torch.cpu._is_avx512_supported()


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
