"""Linear layers whose weights are laid out for the device once, when the model is loaded."""

import logging
from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from optimist_common.errors import one_line

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


Linear = PlainLinear | PackedLinear


def join(linears: Sequence[nn.Linear]) -> Linear:
    """Returns one layer with the outputs of several, one after the other."""
    weights = [linear.weight.detach() for linear in linears]
    # One alone may be shared with the embedding.
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Returns whether this CPU and this PyTorch multiply right by packed weights of a dtype."""
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_available or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    weight, inputs, residual = (
        torch.arange(rows * 64, dtype=torch.float32).sin_().view(rows, 64).to(dtype)
        for rows in (64, 3, 3)
    )
    bias = residual[0].clone()
    try:
        packed = PackedLinear(weight, bias)
        found = packed(inputs), packed.add(inputs, residual)
    except (RuntimeError, AttributeError, TypeError) as error:
        logger.warning("weights are not packed for oneDNN: %s", one_line(error))
        return False
    product = functional.linear(inputs.double(), weight.double(), bias.double())
    close = torch.finfo(dtype).eps * 64
    return all(
        torch.allclose(one.double(), wanted, rtol=0.02, atol=close)
        for one, wanted in zip(found, (product, product + residual.double()), strict=True)
    )
