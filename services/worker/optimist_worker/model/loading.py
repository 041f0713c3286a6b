"""Device, dtype and weights of a decoder of transformers, from safetensors or made up."""

import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from optimist_common.errors import SetupError, one_line
from optimist_worker.core.attention.paged_attention import NAME
from optimist_worker.model.division import StageCut

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


def take_device(name: str) -> torch.device:
    """Returns the device of a setting, and makes it this thread's current one.

    What names no device, such as NCCL and kernels of libraries, then takes it too: otherwise every
    rank would hold a context, and memory, on the first GPU.

    Raises:
        SetupError: That CUDA device is not there.
    """
    device = choose_device(name)
    if device.index is not None:
        torch.cuda.set_device(device)
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


logger = logging.getLogger(__name__)

CONFIG_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    StrictDataclassError,
)
"""What transformers raises for files of configs that are missing or say something odd."""

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_DUMMY_SEED = 20261121


def check_directory(name: str, flag: str, *, needs_weights: bool) -> None:
    """Refuses a directory that holds no model; names of a hub pass.

    Raises:
        SetupError: It is missing or lacks a file; the message begins with `flag`.
    """
    path = Path(name).expanduser()
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if not path.is_dir():
        if path.is_file() and path.suffix.lower() == ".gguf":
            raise SetupError(
                f"{flag}: {name} is a file; convert it with optimist convert {name} DIRECTORY"
            )
        if looks_like_path or path.exists():
            raise SetupError(f"{flag}: {name} is not a directory; give one with a config.json")
        return
    if not (path / "config.json").is_file():
        raise SetupError(f"{flag}: {name} has no config.json; it is not a model of transformers")
    if needs_weights and not any(path.glob("*.safetensors")):
        raise SetupError(
            f"{flag}: {name} has no *.safetensors; convert the weights with save_pretrained"
        )


def load_config(name: str, flag: str) -> Any:
    """Reads the config of a model that can be served; runs no code of the checkpoint.

    Raises:
        SetupError: It cannot be read, or the model would load but compute something else than
            its own attention; the message begins with `flag`.
    """
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except CONFIG_ERRORS as error:
        raise SetupError(f"{flag}: cannot read the config of {name}: {one_line(error)}") from None
    check_config(name, flag, config)
    return config


def check_config(name: str, flag: str, config: Any) -> None:
    """Raises SetupError if the worker cannot serve the model; the message begins with `flag`."""
    text_config = config.get_text_config()
    unsupported = None
    layer_types = set(getattr(text_config, "layer_types", None) or [])
    if getattr(config, "is_encoder_decoder", False):
        unsupported = "it is an encoder-decoder"
    elif layer_types - _LAYER_TYPES:
        unsupported = f"it has {', '.join(sorted(layer_types - _LAYER_TYPES))} layers"
    elif getattr(text_config, "use_bidirectional_attention", False):
        unsupported = "its attention is bidirectional"
    elif getattr(text_config, "num_kv_shared_layers", 0):
        unsupported = "its layers share keys and values"
    if unsupported is not None:
        raise SetupError(
            f"{flag}: {name} ({config.model_type}) cannot be served: {unsupported}; "
            "choose a decoder with causal full or sliding-window attention"
        )


def load_weights(
    name: str,
    flag: str,
    dtype: torch.dtype,
    device: torch.device,
    tensor_parallel_size: int = 1,
    cut: StageCut | None = None,
) -> Any:
    """Loads safetensors weights; shows a progress bar on a terminal, else logs begin and end.

    Args:
        name: Directory or hub name.
        flag: Setting that named it.
        dtype: To compute in.
        device: To compute on; of several ranks it is that of the local rank.
        tensor_parallel_size: Ranks that share each layer, as transformers' plan for it says; each
            reads only its part. More than 1 takes the default group of torch.distributed.
        cut: The part of the model that is wanted; None: all of it.

    Raises:
        SetupError: A file or weight is missing or damaged; the message begins with `flag`.
    """
    if sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    else:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logger.info("loading the weights of %s", name)
    begin = time.monotonic()
    try:
        module = _read_weights(name, flag, dtype, device, tensor_parallel_size, cut)
    except torch.OutOfMemoryError:
        raise SetupError(_no_memory(name, flag, dtype, device)) from None
    _log_end("loaded", module, begin)
    return module


def make_dummy_weights(
    name: str, flag: str, config: Any, dtype: torch.dtype, device: torch.device
) -> Any:
    """Builds a model with random weights, on the device and in the dtype from the start.

    The weights follow from a fixed seed and the initialisation that the model's class has for
    training, so that activations keep a usual size. No weight file is read.

    Raises:
        SetupError: The model does not fit into memory, transformers has no decoder for it, or its
            generation_config.json is damaged.
    """
    logger.info("making dummy weights for %s", name)
    begin = time.monotonic()
    auto_model: Any = AutoModelForCausalLM
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.device(device):
        torch.manual_seed(_DUMMY_SEED)
        try:
            module = auto_model.from_config(
                config, dtype=dtype, attn_implementation=NAME, trust_remote_code=False
            )
        except torch.OutOfMemoryError:
            raise SetupError(_no_memory(name, flag, dtype, device)) from None
        except (ValueError, KeyError, RuntimeError, ImportError) as error:
            raise SetupError(f"{flag}: cannot build {name}: {one_line(error)}") from None
    if (Path(name).expanduser() / "generation_config.json").is_file():
        # It may name more end tokens than the model's own config.
        try:
            module.generation_config = GenerationConfig.from_pretrained(name)
        except CONFIG_ERRORS as error:
            raise SetupError(
                f"{flag}: cannot read generation_config.json of {name}: {one_line(error)}"
            ) from None
    _log_end("made", module, begin)
    return module


def _read_weights(
    name: str,
    flag: str,
    dtype: torch.dtype,
    device: torch.device,
    tensor_parallel_size: int,
    cut: StageCut | None,
) -> Any:
    model_class: Any = AutoModelForCausalLM if cut is None else cut.model_class
    shared: dict[str, Any] = {} if cut is None else {"config": cut.outline.config}
    if tensor_parallel_size > 1:
        shared["distributed_config"] = _sharing(tensor_parallel_size)
    else:
        # Each weight goes there as it is read, so the host never holds the whole model.
        shared["device_map"] = {"": device}
    try:
        module, report = model_class.from_pretrained(
            name,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=NAME,
            output_loading_info=True,
            trust_remote_code=False,
            **shared,
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise SetupError(f"{flag}: cannot load {name}: {one_line(error)}") from None
    except Exception as error:
        # safetensors' error for a damaged file derives from Exception alone.
        if type(error).__name__ != "SafetensorError":
            raise
        raise SetupError(f"{flag}: {name} has a damaged weight file: {one_line(error)}") from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise SetupError(
            f"{flag}: {name} lacks {len(missing)} weights, such as {missing[0]}; "
            "save the whole model with save_pretrained"
        )
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


def _no_memory(name: str, flag: str, dtype: torch.dtype, device: torch.device) -> str:
    return (
        f"{flag}: {name} does not fit into the memory of {device} in {str(dtype)[6:]}; "
        "choose a smaller --dtype, model or another --device"
    )


def _log_end(verb: str, module: Any, begin: float) -> None:
    parts = (
        weight.to_local() if isinstance(weight, DTensor) else weight
        for weight in module.parameters()
    )
    num_bytes = sum(part.numel() * part.itemsize for part in parts)
    seconds = time.monotonic() - begin
    logger.info("%s %.2f GiB of weights in %.1f s", verb, num_bytes / 2**30, seconds)
