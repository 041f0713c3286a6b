"""Which device and dtype a model is computed on and in, as set or chosen by `auto`."""

from typing import Any

import torch

from optimist_common.errors import SetupError

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def choose_device(name: str) -> torch.device:
    """Returns the device of a setting.

    Args:
        name: `cpu`, `cuda`, `cuda:N`, or `auto` and `auto:N`: CUDA if there is such a device at
            all, else the CPU.

    Raises:
        SetupError: That CUDA device is not there.
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


def choose_dtype(
    name: str, flag: str, dtype_name: str, device: torch.device, config: Any
) -> torch.dtype:
    """Returns the dtype to compute in.

    `auto` is float32 on the CPU and on a GPU the config's own dtype, float32 if it has none. The
    field `minimum_dtype` of a config names the narrowest dtype that the model works in: `auto`
    takes at least that.

    Args:
        name: The model's.
        flag: Setting that named it.
        dtype_name: A dtype of PyTorch, or `auto`.
        device: The model's.
        config: The model's.

    Raises:
        SetupError: The model needs a wider dtype, or its config names one that there is not.
    """
    needed = _read_dtype(name, flag, config, "minimum_dtype")
    if dtype_name == "auto":
        own = _read_dtype(name, flag, config, "dtype") or torch.float32
        wanted = own if device.type == "cuda" else torch.float32
        return wanted if needed is None or _holds(wanted, needed) else needed
    dtype: torch.dtype = getattr(torch, dtype_name)
    if needed is not None and not _holds(dtype, needed):
        shown = str(needed).removeprefix("torch.")
        raise SetupError(
            f"{flag}: {name} needs {shown} (minimum_dtype in its config.json), not {dtype_name}; "
            f"choose --dtype {shown}"
        )
    return dtype


def _read_dtype(name: str, flag: str, config: Any, field: str) -> torch.dtype | None:
    value = getattr(config, field, None) or getattr(config.get_text_config(), field, None)
    if value is None:
        return None
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype not in _DTYPES:
        shown = str(value).removeprefix("torch.")
        advice = "; choose one with --dtype" if field == "dtype" else ""
        raise SetupError(
            f"{flag}: {name} has {field} {shown} in its config.json, and the worker computes in "
            f"float64, float32, bfloat16 or float16{advice}"
        )
    return dtype


def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Returns whether a dtype has the precision and the range of another."""
    limits, needed = torch.finfo(dtype), torch.finfo(other)
    return limits.eps <= needed.eps and limits.max >= needed.max
