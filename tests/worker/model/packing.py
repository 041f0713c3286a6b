"""Checkpoints with weights of 8 bits or fewer, written as the tools of each form write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


class Packed(NamedTuple):
    """A matrix in some form, and what it means."""

    parts: Tensors
    """By what follows the layer's name."""
    values: torch.Tensor
    """In double precision, `[out_features, in_features]`."""


class Form(NamedTuple):
    """A form of weights."""

    config: dict[str, Any]
    pack: Callable[[torch.Tensor], Packed]


def spread(grid: torch.Tensor, shape: torch.Size, rows: int, columns: int) -> torch.Tensor:
    """Returns each block's number for each of its values."""
    wide = grid.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return wide[: shape[0], : shape[1]]


def largest(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Returns the largest magnitude of each block."""
    pad = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
    wide = torch.nn.functional.pad(weight, pad)
    grid = wide.view(wide.shape[0] // rows, rows, wide.shape[1] // columns, columns)
    return grid.abs().amax((1, 3))


def fp8(
    weight: torch.Tensor,
    rows: int,
    columns: int,
    name: str = "weight_scale",
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] | None = None,
) -> Packed:
    scales = (largest(weight, rows, columns) / 448).to(dtype)
    wide = spread(scales, weight.shape, rows, columns)
    stored = (weight / wide).to(torch.float8_e4m3fn)
    values = stored.double() * wide
    scales = scales if shape is None else scales.view(shape)
    extra = {"input_scale": torch.ones(())}
    return Packed({"weight": stored, name: scales} | extra, values)


def fp8_tensor(weight: torch.Tensor, shape: tuple[int, ...], name: str = "weight_scale") -> Packed:
    """One scale for all, of some shape."""
    return fp8(weight, weight.shape[0], weight.shape[1], name, shape=shape)


def mxfp8(weight: torch.Tensor) -> Packed:
    exponents = torch.log2(largest(weight, 1, 32) / 448).ceil()
    scales = spread(exponents.exp2(), weight.shape, 1, 32)
    stored = (weight / scales).to(torch.float8_e4m3fn)
    parts = {"weight": stored, "weight_scale_inv": (exponents + 127).to(torch.uint8)}
    return Packed(parts, stored.double() * scales)


def rounded(
    weight: torch.Tensor, bits: int, columns: int, *, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns integers from 0, and scales and zero points for groups of inputs of each output."""
    groups = weight.view(weight.shape[0], -1, columns)
    top = 2**bits - 1
    if is_symmetric:
        scales = groups.abs().amax(2) * 2 / top
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scales = (high - low) / top
        zeros = (-low / scales).round().clamp(1, top)
    scales = scales.half().float()
    values = (groups / scales[:, :, None] + zeros[:, :, None]).round().clamp(0, top)
    return values.view_as(weight).int(), scales, zeros.int()


def words(values: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """Packs integers from 0 into words of 32 bits, the first in the lowest bits."""
    rows = values.long().movedim(axis, -1)
    per_word = 32 // bits
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % per_word))
    parts = rows.view(*rows.shape[:-1], -1, per_word)
    total = sum(parts[..., index] << (bits * index) for index in range(per_word))
    assert isinstance(total, torch.Tensor)
    return total.to(torch.int32).movedim(-1, axis).contiguous()


def integers(weight: torch.Tensor, *, is_symmetric: bool = True) -> Packed:
    """compressed-tensors' int-quantized: 8 bits, a scale for each output."""
    values, scales, zeros = rounded(weight, 8, weight.shape[1], is_symmetric=is_symmetric)
    stored, centre = (values - 128).to(torch.int8), (zeros - 128).to(torch.int8)
    parts = {"weight": stored, "weight_scale": scales.bfloat16()}
    if not is_symmetric:
        parts["weight_zero_point"] = centre
    meant = (stored.double() - centre.double()) * scales.bfloat16().double()
    return Packed(parts, meant)


def pack_quantized(
    weight: torch.Tensor,
    bits: int = 4,
    columns: int = 32,
    *,
    is_symmetric: bool = True,
    order: torch.Tensor | None = None,
) -> Packed:
    """compressed-tensors' own, with groups of inputs in another order if there is one."""
    columns = min(columns, weight.shape[1])
    sorted_weight = weight if order is None else weight[:, order]
    values, scales, zeros = rounded(sorted_weight, bits, columns, is_symmetric=is_symmetric)
    meant = (values - spread(zeros, weight.shape, 1, columns)) * spread(
        scales, weight.shape, 1, columns
    )
    parts = {"weight_scale": scales.half(), "weight_shape": torch.tensor(weight.shape)}
    if order is not None:
        inverse = order.argsort()
        values, meant = values[:, inverse], meant[:, inverse]
        parts["weight_g_idx"] = (inverse // columns).int()
    parts["weight_packed"] = words(values, bits, 1)
    if not is_symmetric:
        parts["weight_zero_point"] = words(zeros, bits, 0)
    return Packed(parts, meant)


def gptq(weight: torch.Tensor, bits: int, columns: int, *, offset: int, shuffles: bool) -> Packed:
    order = torch.arange(weight.shape[1])
    if shuffles:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(3))
    plain = pack_quantized(weight, bits, columns, is_symmetric=False, order=order)
    values, scales, zeros = rounded(weight[:, order], bits, columns, is_symmetric=False)
    parts = {
        "qweight": words(values[:, order.argsort()].t(), bits, 0),
        "qzeros": words(zeros.t() - offset, bits, 1),
        "scales": scales.t().half().contiguous(),
        "g_idx": (order.argsort() // columns).int(),
    }
    return Packed(parts, plain.values)


def awq(weight: torch.Tensor, columns: int = 32) -> Packed:
    plain = pack_quantized(weight, 4, columns, is_symmetric=False)
    values, scales, zeros = rounded(weight, 4, columns, is_symmetric=False)
    # AutoAWQ: WQLinear_GEMM.from_linear.
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def pack(numbers: torch.Tensor) -> torch.Tensor:
        parts = numbers.t().reshape(numbers.shape[1], -1, 8)[:, :, order]
        return words(parts.flatten(1), 4, 1)

    parts = {"qweight": pack(values), "qzeros": pack(zeros)}
    return Packed(parts | {"scales": scales.t().half().contiguous()}, plain.values)


def tensors(format_name: str, **weights: Any) -> dict[str, Any]:
    """Returns the config of compressed-tensors for one kind of weights."""
    group = {"targets": ["Linear"], "weights": weights, "output_activations": None}
    group |= {"input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}
    config: dict[str, Any] = {"quant_method": "compressed-tensors"}
    config |= {"format": format_name, "ignore": ["lm_head"]}
    config |= {"config_groups": {"group_0": group}, "quantization_status": "compressed"}
    return config | {"kv_cache_scheme": None, "global_compression_ratio": 1.0}


FLOAT: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "group_size": None}
INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [48, 40]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}

FORMS: dict[str, Form] = {
    "fp8 tensor": Form(
        tensors("float-quantized", **FLOAT, strategy="tensor"),
        lambda weight: fp8_tensor(weight, (1,)),
    ),
    "fp8 channel": Form(
        tensors("float-quantized", **FLOAT, strategy="channel"),
        lambda weight: fp8(weight, 1, weight.shape[1], dtype=torch.bfloat16),
    ),
    "fp8 block": Form(
        tensors("float-quantized", **FLOAT, strategy="block", block_structure=[48, 40]),
        lambda weight: fp8(weight, 48, 40),
    ),
    "int8": Form(tensors("int-quantized", **INT8, symmetric=True), integers),
    "int8 with zeros": Form(
        tensors("int-quantized", **INT8, symmetric=False),
        lambda weight: integers(weight, is_symmetric=False),
    ),
    "int4": Form(tensors("pack-quantized", **INT4, symmetric=True), pack_quantized),
    "int4 with zeros": Form(
        tensors("pack-quantized", **INT4, symmetric=False),
        lambda weight: pack_quantized(weight, is_symmetric=False),
    ),
    "int4 by channel": Form(
        tensors("pack-quantized", num_bits=4, type="int", strategy="channel", symmetric=True),
        lambda weight: pack_quantized(weight, columns=weight.shape[1]),
    ),
    "int4 by activations": Form(
        tensors("pack-quantized", **INT4, symmetric=True, actorder="group"),
        lambda weight: pack_quantized(weight, order=torch.arange(weight.shape[1]).flip(0)),
    ),
    "deepseek": Form(FP8, lambda weight: fp8(weight, 48, 40, "weight_scale_inv")),
    "mxfp8": Form({"quant_method": "mxfp8"}, mxfp8),
    "ministral": Form(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        lambda weight: fp8_tensor(weight, (), "weight_scale_inv"),
    ),
    "fbgemm": Form({"quant_method": "fbgemm_fp8"}, lambda weight: fp8(weight, 1, weight.shape[1])),
    "modelopt": Form(
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        lambda weight: fp8_tensor(weight, ()),
    ),
    "gptq": Form(GPTQ, lambda weight: gptq(weight, 4, 32, offset=1, shuffles=False)),
    "gptq by activations": Form(
        GPTQ | {"desc_act": True}, lambda weight: gptq(weight, 4, 32, offset=1, shuffles=True)
    ),
    "gptq of 2 bits": Form(
        GPTQ | {"bits": 2, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, 2, 32, offset=0, shuffles=False),
    ),
    "awq": Form(AWQ, awq),
}


def is_linear(name: str) -> bool:
    return name.endswith("proj.weight")


def pack_checkpoint(source: Path, target: Path, form: Form) -> Path:
    """Writes a plain checkpoint's layers in some form.

    Returns:
        A plain checkpoint beside it, with the values that the packed one means in float64.
    """
    plain = target.with_name(f"{target.name}-plain")
    packed, meant = Tensors(), Tensors()
    for name, weight in load_file(source / "model.safetensors").items():
        if is_linear(name):
            one = form.pack(weight)
            module = name.removesuffix("weight")
            packed |= {module + key: part.contiguous() for key, part in one.parts.items()}
            meant[name] = one.values
        else:
            packed[name], meant[name] = weight, weight.double()
    config = json.loads((source / "config.json").read_text())
    for path, weights, more in (
        (target, packed, {"quantization_config": form.config}),
        (plain, meant, {"dtype": "float64"}),
    ):
        path.mkdir()
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text(json.dumps(config | more))
    return plain
