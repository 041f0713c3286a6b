"""A copy of a model with quantised weights, to draft for the model itself."""

import copy
import json
import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from optimist_common.errors import SetupError
from optimist_worker.model.linear import PanelLinear, takes_rounded_panels
from optimist_worker.model.model import Model
from optimist_worker.model.rounding import (
    GROUP_SIZE,
    TINY,
    Bits,
    pack_int4,
    round_groups,
    round_outputs,
    round_weight,
    takes_int4,
)

# cuBLAS multiplies int8 matrices of more than 16 rows, in multiples of 8.
_FEWEST_CUDA_ROWS = 32


def can_quantise(linear: nn.Linear, bits: int) -> bool:
    """Whether the kernel for these bits takes the layer's shape on its device."""
    if takes_rounded_panels(linear.weight):
        return True
    rows, columns = linear.weight.shape
    is_cuda = linear.weight.device.type == "cuda"
    if bits == 4:
        return takes_int4(linear.weight)
    return not is_cuda or (rows % 8 == 0 and columns % 8 == 0)


def quantise_linear(linear: nn.Linear, bits: int) -> nn.Module:
    """Returns a layer that computes nearly what `linear` does from weights of 8 or 4 bits."""
    if takes_rounded_panels(linear.weight):
        return PanelLinear(round_weight(linear.weight, 4 if bits == 4 else 8).panels, linear.bias)
    return Int4Linear(linear) if bits == 4 else Int8Linear(linear)


class Int8Linear(nn.Module):
    """Weights of 8 bits with a scale per output, inputs of 8 bits with a scale per token.

    The scales of one token do not depend on the others of the batch. Method: LLM.int8()
    (Dettmers et al. 2022) without its outlier part, as in torchao's
    Int8DynamicActivationInt8WeightConfig.
    """

    values: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        values, scales = round_outputs(linear.weight)
        self.register_buffer("values", values.t())
        self.register_buffer("scales", scales)
        self.register_buffer("bias", _detached(linear.bias))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in_features]` to `[..., out_features]`."""
        rows = inputs.reshape(-1, inputs.shape[-1]).float()
        norms = _row_norms(rows)
        tokens = (rows * (127.0 / norms)).round_().to(torch.int8)
        num_rows = tokens.shape[0]
        if num_rows == 0:
            return inputs.new_empty((*inputs.shape[:-1], self.values.shape[1]))
        if tokens.is_cuda and num_rows < _FEWEST_CUDA_ROWS:
            tokens = functional.pad(tokens, (0, 0, 0, _FEWEST_CUDA_ROWS - num_rows))
        elif tokens.is_cuda:
            tokens = functional.pad(tokens, (0, 0, 0, -num_rows % 8))
        products = torch._int_mm(tokens, self.values)[:num_rows] * (norms / 127.0)
        return _finish(products.mul_(self.scales), self.bias, inputs)


class Int4Linear(nn.Module):
    """Weights of 4 bits with a scale and a zero point per GROUP_SIZE inputs; bfloat16 products."""

    values: torch.Tensor
    scales_and_zeros: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.weight.shape[0]
        steps, scales_and_zeros = round_groups(linear.weight)
        self.register_buffer("values", pack_int4(steps))
        self.register_buffer("scales_and_zeros", scales_and_zeros)
        self.register_buffer("bias", _detached(linear.bias))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in_features]` to `[..., out_features]`."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(torch.bfloat16)
        if rows.shape[0] == 0:
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        multiply = torch.ops.aten._weight_int4pack_mm
        if not rows.is_cuda:
            multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        products = multiply(rows, self.values, GROUP_SIZE, self.scales_and_zeros)
        return _finish(products, self.bias, inputs)


def _row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Returns the largest magnitude of each row, `[num_rows, 1]`, above 0."""
    if rows.shape[0] == 0:
        return rows.new_empty((0, 1))
    return torch.linalg.vector_norm(rows, float("inf"), dim=1, keepdim=True).clamp_min_(TINY)


def _detached(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.detach()


def _finish(
    products: torch.Tensor, bias: torch.Tensor | None, inputs: torch.Tensor
) -> torch.Tensor:
    """Returns the products in dtype and leading shape of the inputs, with the bias."""
    outputs = products.to(inputs.dtype).reshape(*inputs.shape[:-1], products.shape[1])
    return outputs if bias is None else outputs + bias.to(inputs.dtype)


logger = logging.getLogger(__name__)

KEPT_FILE = "quantised_drafter.json"
"""In a model's directory, may name by bits the linear layers that must stay as they are."""


def quantise(model: Model, bits: Bits) -> Model:
    """Makes a copy whose linear layers have weights of 8 or 4 bits.

    Embeddings, norms and whatever else is not a linear layer are the model's own tensors; those of
    a float64 model are converted, and the copy computes in float32. The output matrix gets 8 bits
    in either case, since it decides the token alone. Layers that the directory's KEPT_FILE names
    for these bits stay as they are, and so do those whose shape the kernel does not take.

    Raises SetupError if there is no linear layer to quantise, KEPT_FILE is wrong, or the device
    lacks the kernel.
    """
    dtype = torch.float32 if model.dtype == torch.float64 else model.dtype
    module = quantise_module(model.module, bits, kept_layers(model.name, bits), dtype)
    result = replace(model, name=f"{model.name} (int{bits})", module=module, dtype=dtype)
    logger.info(
        "%s takes %.1f MiB besides the model", result.name, extra_bytes(result, model) / 2**20
    )
    return result


def quantise_module(module: Any, bits: Bits, kept: Collection[str], dtype: torch.dtype) -> Any:
    """Makes a copy of a transformers model whose linear layers but `kept` are quantised."""
    linears = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    unknown = sorted(set(kept) - set(linears))
    if unknown:
        raise SetupError(f"--drafter: {KEPT_FILE} names {unknown[0]}, no linear layer of the model")
    output = module.get_output_embeddings()
    replaced: dict[str, nn.Module] = {}
    for name, linear in linears.items():
        layer_bits = 8 if linear is output else bits
        if name not in kept and can_quantise(linear, layer_bits):
            replaced[name] = quantise_linear(linear, layer_bits)
    if not replaced:
        raise SetupError(
            f"--drafter: the model has no linear layer that can be quantised to {bits} bits"
        )
    result = _share(module, {id(linears[name]): part for name, part in replaced.items()}, dtype)
    result.config.dtype = dtype
    return result


def kept_layers(name: str, bits: Bits) -> list[str]:
    """Reads from KEPT_FILE which layers of the model in a directory must stay as they are."""
    path = Path(name).expanduser() / KEPT_FILE
    if not path.is_file():
        return []
    try:
        kept = json.loads(path.read_text(encoding="utf-8")).get(f"int{bits}", [])
    except (ValueError, AttributeError, OSError):
        kept = None
    if not isinstance(kept, list) or not all(isinstance(layer, str) for layer in kept):
        raise SetupError(f"--drafter: {path} must hold lists of names for int8 and int4")
    return kept


def extra_bytes(copied: Model, model: Model) -> int:
    """Memory that a copy takes besides what it shares with the model, in bytes."""
    shared = {tensor.data_ptr() for tensor in _tensors(model.module)}
    own = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(copied.module)}
    return sum(size for address, size in own.items() if address not in shared)


def _tensors(module: Any) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _share(module: Any, replaced: dict[int, nn.Module], dtype: torch.dtype) -> Any:
    """Copies the structure of a module, not its tensors; some parts are replaced by identity.

    `copy.deepcopy` takes what its memo has for an object instead of copying the object.
    """
    memo: dict[int, Any] = dict(replaced)
    for part in module.modules():
        if id(part) in replaced:
            continue
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            shared = tensor
            if tensor.dtype == torch.float64:
                shared = tensor.detach().to(dtype)
                if isinstance(tensor, nn.Parameter):
                    shared = nn.Parameter(shared, requires_grad=False)
            memo[id(tensor)] = shared
    result = copy.deepcopy(module, memo)
    for part in result.modules():
        # Hooks are of those who watch the model, not of its copy.
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return result
