"""Whether weights fit the model that a config describes and the machine, and are numbers at all."""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from optimist_common.errors import SetupError
from optimist_worker.core.attention.paged_attention import NAME
from optimist_worker.model.packed_checkpoint import PackedCheckpoint, quantization
from optimist_worker.model.source import ModelSource

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"^(.*?(?:layers?|blocks?|h)\.)(\d+)\.")
# Tables that older versions of the classes saved and that are computed now.
_TABLES = re.compile(r"inv_freq$|masked_bias$|\.attn\.bias$|\.attention\.bias$")


def check_fit(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    packed: PackedCheckpoint | None,
    *,
    has_weights: bool,
) -> None:
    """Compares weight files with the model's class and both with the memory.

    Everything is on the meta device: no weight is read and nothing is allocated. Of weights that
    their own library unpacks only that knows the shapes. Without weight files random ones are
    wanted; `packed` are weights that are unpacked when they are read.

    Raises SetupError if a weight is missing, left over or has another shape, the class cannot be
    built, or the weights are more than the memory.
    """
    if quantization(source.config) is not None:
        return
    meta = torch.device("meta")
    with source.built(), quiet():
        if has_weights:
            module, report = from_pretrained(
                source, dtype, meta, packed, device_map={"": meta}, ignore_mismatched_sizes=True
            )
        else:
            module = source.make_module(dtype)
    if has_weights:
        _check_report(source.where, module, report)
    num_bytes = sum(weight.numel() for weight in module.parameters()) * dtype.itemsize
    most = _memory(device)
    if most is not None and num_bytes > most:
        raise SetupError(
            f"{source.where} has {num_bytes / 2**30:.1f} GiB of weights in {str(dtype)[6:]}, and "
            f"{device} has {most / 2**30:.1f} GiB of memory; choose a smaller --dtype or model"
        )


def from_pretrained(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    packed: PackedCheckpoint | None,
    model_class: Any = AutoModelForCausalLM,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Returns a decoder with its weights, and what transformers found missing and left over."""
    name: str | None = source.name
    if packed is not None:
        outline = source.make_module()
        if model_class is AutoModelForCausalLM:
            model_class = type(outline)
        weights = packed.weights(dtype)
        if device.type == "meta":
            weights = {
                key: torch.empty(part.get_shape(), device=device) for key, part in weights.items()
            }
        name, options = None, {"config": outline.config, "state_dict": weights, **options}
    loaded: tuple[Any, dict[str, Any]] = model_class.from_pretrained(
        name,
        dtype=dtype,
        attn_implementation=NAME,
        output_loading_info=True,
        use_safetensors=True,
        trust_remote_code=False,
        **options,
    )
    return loaded


def finite_fault(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Returns which weight has values that are not finite numbers; no text if none has.

    Each is read once.
    """
    weights: list[tuple[str, torch.Tensor]] = []
    for key, weight in named:
        part = weight.to_local() if isinstance(weight, DTensor) else weight
        if part.is_floating_point() and part.itemsize > 1 and not part.is_meta and part.numel():
            weights.append((key, part))
    if not weights:
        return ""
    # A sum is finite if all of it is, unless it is too large itself.
    sums = torch.stack([part.detach().sum(dtype=_sum_dtype(part)).double() for _, part in weights])
    for index in (~sums.isfinite()).nonzero().flatten().tolist():
        key, part = weights[index]
        number = int((~part.isfinite()).sum())
        if number:
            return f"{key} has {number} values that are not finite numbers; copy the weights again"
    return ""


def _sum_dtype(weight: torch.Tensor) -> torch.dtype:
    return weight.dtype if weight.itemsize > 2 else torch.float32


def _memory(device: torch.device) -> int | None:
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return None


def _check_report(where: str, module: Any, report: dict[str, Any]) -> None:
    """Raises SetupError for what transformers would fill in or leave out."""
    if others := sorted(report["mismatched_keys"]):
        key, found, wanted = others[0]
        raise SetupError(
            f"{where}: {key} has the shape {list(found)} and config.json asks for {list(wanted)}"
            f"{_cause(module.config, found, wanted)}{_more(others)}"
        )
    config = module.config.get_text_config()
    _check_left_over(where, config, module.state_dict(), sorted(report["unexpected_keys"]))
    check_missing(where, report)


def check_missing(where: str, report: dict[str, Any]) -> None:
    """Raises SetupError if transformers has found no weight for a part of the model."""
    if missing := sorted(report["missing_keys"]):
        raise SetupError(
            f"{where} lacks {len(missing)} weights, such as {missing[0]}; "
            "save the whole model with save_pretrained"
        )


def _check_left_over(where: str, config: Any, known: Iterable[str], left_over: list[str]) -> None:
    """Refuses weights of the decoder's layers that would not be used; others may be anything."""
    beginnings = {match[1] for key in known if (match := _LAYER.match(key))}
    num_layers = config.num_hidden_layers
    # Layers that predict further tokens come after the others.
    further = getattr(config, "num_nextn_predict_layers", 0) or 0
    others: list[str] = []
    for key in left_over:
        match = _LAYER.match(key)
        if match is None or match[1] not in beginnings:
            others.append(key)
        elif int(match[2]) >= num_layers + further:
            raise SetupError(
                f"{where}: config.json: num_hidden_layers is {num_layers}, and the weights have "
                f"more layers ({key})"
            )
        elif int(match[2]) < num_layers and not _TABLES.search(key):
            raise SetupError(
                f"{where}: {key} is a weight that the model of config.json does not have, so its "
                f"text would be wrong{_more(left_over)}"
            )
    if others:
        logger.warning("%d weights are not used, such as %s", len(others), others[0])


def _cause(config: Any, found: Iterable[int], wanted: Iterable[int]) -> str:
    """Returns which keys of a config have the sizes that weights do not have, in words."""
    sizes = set(wanted) - set(found)
    values = config.get_text_config().to_dict()
    keys = sorted(key for key, value in values.items() if type(value) is int and value in sizes)
    return f" ({', '.join(f'{key} is {values[key]}' for key in keys[:3])})" if keys else ""


def _more(keys: list[Any]) -> str:
    return f"; {len(keys) - 1} more weights are wrong" if len(keys) > 1 else ""


@contextmanager
def quiet() -> Iterator[None]:
    """Has transformers say nothing: what we report ourselves, or what is not how we compute."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
