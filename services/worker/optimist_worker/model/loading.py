"""Device, dtype and weights of a decoder of transformers, from safetensors or made up."""

import logging
import sys
import time
from typing import Any

import torch
import transformers
from torch.distributed.tensor import DTensor
from transformers.utils import logging as transformers_logging

from optimist_common.errors import SetupError
from optimist_worker.model.division import StageCut
from optimist_worker.model.fit import check_missing, finite_fault, from_pretrained
from optimist_worker.model.operations import MULTIPLY
from optimist_worker.model.packed_checkpoint import PackedCheckpoint, quantization
from optimist_worker.model.source import ModelSource

logger = logging.getLogger(__name__)

_DUMMY_SEED = 20261121
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FUSED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"})
"""Types of models whose layers `fused.py` has."""


def choose_device(name: str) -> torch.device:
    """Returns the device of a setting; raises SetupError if that CUDA device is not there.

    It is `cpu`, `cuda`, `cuda:N`, or `auto` and `auto:N`: CUDA if there is such a device at all,
    else the CPU.
    """
    num_gpus = torch.cuda.device_count()
    if name.startswith("auto"):
        name = name.replace("auto", "cuda") if num_gpus else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise SetupError(
            f"--device: {name} is not on this machine ({num_gpus} CUDA devices); use --device cpu"
        )
    return device


def take_device(name: str) -> torch.device:
    """Returns the device of a setting, see `choose_device`, and makes it this thread's current one.

    What names no device, such as NCCL and kernels of libraries, then takes it too: otherwise every
    rank would hold a context, and memory, on the first GPU.
    """
    device = choose_device(name)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def choose_dtype(
    source: ModelSource, dtype_name: str, device: torch.device, *, has_kernels: bool = False
) -> torch.dtype:
    """Returns the dtype to compute in.

    `auto` is on a GPU the config's own dtype, float32 if it has none. On the CPU it is float32, or
    bfloat16 if that is the model's own and our kernels, if they may, compute the same text in it.
    The field `minimum_dtype` of a config names the narrowest dtype that the model works in: `auto`
    takes at least that.

    Raises SetupError if the model needs a wider dtype, or its config names one that there is not.
    """
    needed = _read_dtype(source, "minimum_dtype")
    if dtype_name == "auto":
        own = _read_dtype(source, "dtype") or torch.float32
        takes_own = device.type == "cuda" or (
            has_kernels and own == torch.bfloat16 and _is_exact_in_bfloat16(source)
        )
        wanted = own if takes_own else torch.float32
        return wanted if needed is None or _holds(wanted, needed) else needed
    dtype: torch.dtype = getattr(torch, dtype_name)
    if needed is not None and not _holds(dtype, needed):
        shown = str(needed).removeprefix("torch.")
        raise SetupError(
            f"{source.where} needs {shown} (minimum_dtype in its config.json), not {dtype_name}; "
            f"choose --dtype {shown}"
        )
    return dtype


def _is_exact_in_bfloat16(source: ModelSource) -> bool:
    """Returns whether our kernels compute a token as they do beside others."""
    is_fused = source.text_config.model_type in _FUSED and quantization(source.config) is None
    return is_fused and MULTIPLY.kernel_for(torch.empty(0, dtype=torch.bfloat16)) is not None


def _read_dtype(source: ModelSource, field: str) -> torch.dtype | None:
    value = getattr(source.config, field, None) or getattr(source.text_config, field, None)
    if value is None:
        return None
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype not in _DTYPES:
        shown = str(value).removeprefix("torch.")
        advice = "; choose one with --dtype" if field == "dtype" else ""
        raise SetupError(
            f"{source.where} has {field} {shown} in its config.json, and the worker computes in "
            f"float64, float32, bfloat16 or float16{advice}"
        )
    return dtype


def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Returns whether a dtype has the precision and the range of another."""
    limits, needed = torch.finfo(dtype), torch.finfo(other)
    return limits.eps <= needed.eps and limits.max >= needed.max


def load_weights(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    packed: PackedCheckpoint | None = None,
    tensor_parallel_size: int = 1,
    cut: StageCut | None = None,
) -> Any:
    """Loads safetensors weights; shows a progress bar on a terminal, else logs begin and end.

    Several ranks share each layer, as transformers' plan for the model says; each reads only its
    part, to the device of its local rank, and all have the default group of torch.distributed.
    `packed` are weights that are unpacked when they are read, and `cut` is the part of the model
    that is wanted; None: all of it.

    Raises SetupError if a file or weight is missing or damaged, or the memory too small.
    """
    if sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    else:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logger.info("loading the weights of %s", source.name)
    begin = time.monotonic()
    options: dict[str, Any] = {}
    if tensor_parallel_size > 1:
        options["distributed_config"] = _sharing(tensor_parallel_size)
    else:
        # Each weight goes there as it is read, so the host never holds the whole model.
        options["device_map"] = {"": device}
    if cut is not None:
        options |= {"model_class": cut.model_class, "config": cut.outline.config}
    with source.built():
        module, report = from_pretrained(source, dtype, device, packed, **options)
    check_missing(source.where, report)
    if fault := finite_fault((*module.named_parameters(), *module.named_buffers())):
        raise SetupError(f"{source.where}: {fault}")
    _log_end("loaded", module, begin)
    return module


def make_dummy_weights(source: ModelSource, dtype: torch.dtype, device: torch.device) -> Any:
    """Builds a model with random weights, on the device and in the dtype from the start.

    The weights follow from a fixed seed and the initialisation that the model's class has for
    training, so that activations keep a usual size. No weight file is read.
    """
    logger.info("making dummy weights for %s", source.name)
    begin = time.monotonic()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), source.built():
        torch.manual_seed(_DUMMY_SEED)
        module = source.make_module(dtype, device)
    _log_end("made", module, begin)
    return module


def _sharing(number: int) -> Any:
    """Returns transformers' setting that shares layers among a number of ranks."""
    try:
        # Older versions do not have it, or not like this.
        from transformers.distributed import DistributedConfig  # type: ignore[attr-defined]

        return DistributedConfig(tp_size=number)
    except (ImportError, TypeError):
        raise SetupError(
            f"--tensor-parallel-size: transformers {transformers.__version__} is too old for it; "
            "update it to 5.23"
        ) from None


def _log_end(verb: str, module: Any, begin: float) -> None:
    parts = (
        weight.to_local() if isinstance(weight, DTensor) else weight
        for weight in module.parameters()
    )
    num_bytes = sum(part.numel() * part.itemsize for part in parts)
    seconds = time.monotonic() - begin
    logger.info("%s %.2f GiB of weights in %.1f s", verb, num_bytes / 2**30, seconds)
