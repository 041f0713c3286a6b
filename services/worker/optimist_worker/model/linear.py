"""Linear layers whose weights are laid out for the device once, when the model is loaded."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from optimist_common.errors import SetupError
from optimist_worker.model.operations import MULTIPLY, Panels, make_panels
from optimist_worker.model.rounding import Bits, round_weight


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


Linear = PlainLinear | PanelLinear


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


def lay_out(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Returns the layer for weights as they are, of the layout that is fastest on their device."""
    if weight.shape[1] % 2 == 0 and MULTIPLY.kernel_for(weight) is not None:
        return PanelLinear(make_panels(weight), bias)
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
