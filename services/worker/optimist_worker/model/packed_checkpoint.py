"""Checkpoints whose weights are quantised already, read as if they were plain."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from optimist_common.errors import SetupError
from optimist_common.model_files.directory import find_directory
from optimist_common.model_files.json_file import shown
from optimist_common.model_files.tokenizer import explained
from optimist_common.model_files.weights import read_headers
from optimist_worker.model.packed import (
    BY_OUTPUT,
    MATRICES,
    SCALES,
    WHOLE,
    Block,
    Layout,
    PackedError,
    PackedMatrix,
    PackedModule,
    Part,
)
from optimist_worker.model.source import ModelSource

logger = logging.getLogger(__name__)

METHODS = ("compressed-tensors", "fp8", "mxfp8", "fbgemm_fp8", "modelopt", "gptq", "awq")
"""Values of `quant_method` that are unpacked."""
_KEPT_ON_A_GPU = ("fp8", "mxfp8", "fbgemm_fp8", "gptq", "awq")
"""Of them, those whose libraries have kernels that transformers computes with."""
_FORMATS = (
    *("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    *("mxfp8-quantized", "mixed-precision", "dense"),
)
_FILES = ["*.json", "model*.safetensors"]
_PLAIN = ("F64", "F32", "F16", "BF16")
# What rounds activations, keys and values, which are not rounded here.
_UNUSED = re.compile(
    r"\.(input|output|activation|[qkv])_(scale|zero_point)(_ub)?$|\.weight_shape$|\.g_idx$"
)


class PackedCheckpoint:
    """The weights of a checkpoint, of which those that are packed are unpacked when they are read.

    Values are what the files mean: stored number times scale, in single precision (double, if that
    is wanted), then rounded to the dtype to compute in. Activations are not rounded, nor are keys
    and values, whatever the config says of them: that is for kernels that compute in few bits.
    """

    def __init__(self, directory: Path, layout: Layout) -> None:
        """Opens the files and reads their headers; raises FileError."""
        self.directory, self._layout = directory, layout
        headers = read_headers(directory)
        files = {each.file for each in headers.values()}
        opened: dict[str, Any] = {
            file: safe_open(directory / file, framework="pt") for file in files
        }
        self._parts = {name: opened[each.file].get_slice(name) for name, each in headers.items()}

    def weights(self, dtype: torch.dtype) -> dict[str, Part | PackedMatrix]:
        """Returns the weights, to compute in a dtype, by the names that plain checkpoints have.

        Raises PackedError if what is stored is not known.
        """
        modules: dict[str, dict[str, Part]] = {}
        for name, part in self._parts.items():
            module, _, key = name.rpartition(".")
            modules.setdefault(module, {})[key] = part
        return dict(
            pair for name, parts in modules.items() for pair in self._read(name, parts, dtype)
        )

    def _read(
        self, module: str, parts: dict[str, Part], dtype: torch.dtype
    ) -> Iterator[tuple[str, Part | PackedMatrix]]:
        """Yields the plain weights of a module."""
        left = dict(parts)
        is_packed = not parts.keys().isdisjoint((*SCALES, "weight_packed", "qweight"))
        if is_packed and not parts.keys().isdisjoint(MATRICES):
            yield f"{module}.weight", PackedModule(module, parts, self._layout).matrix(dtype)
            known = (*MATRICES, *SCALES, "weight_zero_point", "weight_shape", "weight_g_idx")
            left = {key: part for key, part in parts.items() if key not in (*known, "qzeros")}
        for key, part in left.items():
            name = f"{module}.{key}" if module else key
            if _UNUSED.search(name):
                continue
            if key.endswith("weight") and part.get_dtype() not in _PLAIN:
                raise PackedError(f"{name} is {part.get_dtype()} and has no scale")
            yield name, part


def open_packed(
    source: ModelSource, device: torch.device, *, has_weights: bool
) -> PackedCheckpoint | None:
    """Opens the weights of a model that are quantised already, if they are to be unpacked.

    That is on a CPU, and wherever no library would keep them packed. The config then describes a
    plain model: what it says of the form is taken out. Without weight files random ones are wanted.
    Returns None if it is plain, read by a library, or not to be read at all; raises SetupError if
    the form, or a part of it, is not known.
    """
    name, config = source.name, source.config
    values = quantization(config)
    if values is None:
        return None
    method, where = values.get("quant_method"), f"{source.where}: config.json: quantization_config"
    libraries = {key.removesuffix("_4bit").removesuffix("_8bit") for key in AUTO_QUANTIZER_MAPPING}
    is_kept = method in _KEPT_ON_A_GPU and device.type != "cpu"
    if method in libraries and (is_kept or method not in METHODS):
        return None
    if method not in METHODS:
        raise SetupError(
            f"{where}.quant_method is {shown(method)}; it must be one of "
            f"{', '.join(sorted({*METHODS, *libraries}))}"
        )
    for part in (config, config.get_text_config()):
        part.__dict__.pop("quantization_config", None)
    try:
        layout = read_layout(values)
    except PackedError as error:
        raise SetupError(f"{where}: {error}; choose another checkpoint of the model") from None
    if not has_weights:
        return None
    logger.info(
        "weights of %s are %s and are unpacked; activations, keys and values are not rounded",
        *(name, method),
    )
    with explained(f"{source.flag}: cannot read {name}"):
        directory = find_directory(name, source.flag) or snapshot_download(
            name, allow_patterns=_FILES
        )
        return PackedCheckpoint(Path(directory), layout)


def quantization(config: Any) -> dict[str, Any] | None:
    """Returns what a config says of weights that are quantised already, if they are."""
    for part in (config, config.get_text_config()):
        found = getattr(part, "quantization_config", None)
        if found is not None:
            # transformers replaces it by an object when it has loaded the model.
            return found if isinstance(found, dict) else found.to_dict()
    return None


def read_layout(values: Mapping[str, Any]) -> Layout:
    """Returns what a `quantization_config` says of packed matrices.

    Raises PackedError, which names the key, if it asks for something else than unpacking.
    """
    method = values["quant_method"]
    if method == "compressed-tensors":
        schemes = _read_schemes(values)
        bits = [scheme.get("num_bits", 8) for scheme in schemes]
        return Layout(
            method,
            [block for scheme in schemes for block in _blocks(_scheme_block(scheme))],
            [each for each in bits if type(each) is int],
            needed=_needed(schemes),
        )
    if method in ("gptq", "awq"):
        _require(values, "version", *(("gemm",) if method == "awq" else ()))
        _require(values, "checkpoint_format", "gptq", "gptq_v2")
        # Layers may have sizes of their own.
        sizes = [each.get("group_size") for each in (values, *_objects(values, "dynamic"))]
        is_first = values.get("checkpoint_format") != "gptq_v2"
        needed = ["g_idx"] * (values.get("desc_act") is True)
        return Layout(method, _blocks(*[(1, size) for size in sizes]), (), int(is_first), needed)
    if method == "modelopt":
        _require(values, "quant_algo", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")
    usual = {"fp8": (128, 128), "mxfp8": (1, 32)}.get(method)
    if values.get("quant_algo") == "FP8_PB_WO":
        usual = (128, 128)
    size = values.get("weight_block_size", usual)
    return Layout(method) if size is None else Layout(method, _blocks(size))


def _read_schemes(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns what a compressed-tensors config says of weights, for each group of layers."""
    groups = _objects(values, "config_groups")
    for group in (values, *groups):
        _require(group, "format", *_FORMATS)
    _require(_object(values, "sparsity_config"), "format", "dense")
    if _object(values, "transform_config").get("config_groups"):
        raise PackedError("transform_config rotates activations, which the worker does not do")
    schemes = [_object(group, "weights") for group in groups]
    for scheme in schemes:
        _require(scheme, "strategy", "tensor", "channel", "group", "block")
    return [scheme for scheme in schemes if scheme]


def _needed(schemes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what all schemes need; which of them a layer has is not looked up."""
    needed = {"weight_zero_point": ("symmetric", False), "weight_g_idx": ("actorder", "group")}
    return [
        part
        for part, (key, value) in needed.items()
        if schemes and all(scheme.get(key) == value for scheme in schemes)
    ]


def _scheme_block(scheme: Mapping[str, Any]) -> Any:
    """Returns what shares a scale by a scheme, without strategy as the library takes it."""
    size = scheme.get("group_size")
    strategy = scheme.get("strategy") or ("tensor" if size is None else "group")
    if strategy == "block":
        return scheme.get("block_structure")
    return {"tensor": WHOLE, "channel": BY_OUTPUT}.get(strategy, (1, size))


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns an object in another one, which may be missing."""
    value = values.get(key)
    if value is not None and not isinstance(value, dict):
        raise PackedError(f"{key} is {shown(value)}; it must be an object")
    return value or {}


def _objects(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Returns the objects in an object, which may be missing."""
    outer = _object(values, key)
    return [_object(outer, each) for each in outer]


def _require(values: Mapping[str, Any], key: str, *known: str) -> None:
    value = values.get(key)
    if known and value is not None and str(value).lower() not in map(str.lower, known):
        raise PackedError(f"{key} is {shown(value)}; what is read is {', '.join(known)}")


def _blocks(*sizes: Any) -> list[Block]:
    """Returns sizes of blocks that can be, in which -1 stands for as many inputs as there are."""
    return [
        (each[0], max(each[1], 0))
        for each in sizes
        if isinstance(each, list | tuple) and len(each) == 2
        if all(type(size) is int and size >= -1 for size in each)
    ]
