"""A copy of a model with quantised weights, to draft for the model itself."""

import copy
import json
import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from optimist_common.errors import SetupError
from optimist_worker.model.model import Model
from optimist_worker.model.quantised_linear import PackedInt8Linear, can_quantise, quantise_linear

logger = logging.getLogger(__name__)

Bits = Literal[4, 8]

KEPT_FILE = "quantised_drafter.json"
"""In a model's directory, may name by bits the linear layers that must stay as they are."""


def quantise(model: Model, bits: Bits) -> Model:
    """Makes a copy whose linear layers have weights of 8 or 4 bits.

    Embeddings, norms and whatever else is not a linear layer are the model's own tensors; those of
    a float64 model are converted, and the copy computes in float32. The output matrix gets 8 bits
    in either case, since it decides the token alone. Layers that the directory's KEPT_FILE names
    for these bits stay as they are, and so do those whose shape the kernel does not take.

    Raises:
        SetupError: The model has no linear layer to quantise, KEPT_FILE is wrong, or the device
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
    """Makes a copy of a transformers model whose linear layers but `kept` are quantised.

    Raises:
        SetupError: As `quantise` does.
    """
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
    """Reads which layers of the model in a directory must stay as they are.

    Raises:
        SetupError: KEPT_FILE is not an object of lists of names.
    """
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
    packed = (part for part in copied.module.modules() if isinstance(part, PackedInt8Linear))
    return sum(size for address, size in own.items() if address not in shared) + sum(
        part.num_bytes for part in packed
    )


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
