"""The headers of safetensors files: what weights there are, and that the files hold all of them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from optimist_common.errors import one_line
from optimist_common.model_files.config import text_part
from optimist_common.model_files.json_file import FileError, read_object, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_MAX_INDEX_BYTES = 32 * 2**20
_MAX_HEADER_BYTES = 32 * 2**20
_EXPERT = re.compile(r"(.*\bexperts\.)(\d{1,5})\.(.+)")
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d{1,5})\.")


class Weight(NamedTuple):
    """What a header says of one weight."""

    dtype: str
    shape: tuple[int, ...]
    file: str


def read_headers(directory: Path) -> dict[str, Weight]:
    """Returns the weights of a model by their names, without reading any.

    Raises:
        FileError: There are none, or only pickles, which can run code; a file is missing, cut
            short or wrong; or the index names files elsewhere.
    """
    if os.path.lexists(directory / SINGLE):
        return _read_existing(directory / SINGLE, "a link to nothing")
    if not os.path.lexists(directory / INDEX):
        raise FileError(_nothing(directory))
    shards = _shards(directory)
    weights: dict[str, Weight] = {}
    for name in sorted(set(shards.values())):
        found = _read_existing(directory / name, f"named by {INDEX} and not there")
        twice = weights.keys() & found.keys()
        if twice:
            raise FileError(f"{name} has {min(twice)}, which another file has too")
        weights |= found
    lost = shards.keys() - weights.keys()
    if lost:
        raise FileError(f"{INDEX} names {min(lost)}, which {shards[min(lost)]} does not have")
    return weights


def read_header(path: Path) -> dict[str, Weight]:
    """Returns the weights in one file by their names.

    Raises:
        FileNotFoundError: There is none.
        FileError: It is not what safetensors reads: cut short, say, or with weights that overlap.
    """
    # The worker's package, which alone reads weights.
    from safetensors import SafetensorError, safe_open

    if path.exists() and not path.is_file():
        raise FileError(f"{path.name} is not a regular file")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise _damaged(path, f"a header of {length} bytes")
        with safe_open(path, framework="np") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {
                name: Weight(part.get_dtype(), tuple(part.get_shape()), path.name)
                for name, part in parts.items()
            }
    except FileNotFoundError:
        raise
    except SafetensorError as error:
        reason = one_line(error).removeprefix("Error while deserializing header: ")
        raise _damaged(path, reason) from None
    except OSError as error:
        raise FileError(f"{path.name} cannot be read: {error.strerror}") from None


def _damaged(path: Path, reason: str) -> FileError:
    return FileError(f"{path.name}: it is cut short, or not safetensors ({reason}); copy it again")


def check_fit(weights: Mapping[str, Weight], config: Mapping[str, Any]) -> None:
    """Raises FileError if a config asks for more than the weights can be.

    The exact comparison takes the model's class, which is built first: this is so that no class is
    built for ever.
    """
    part = text_part(config)
    found = 1 + max((int(each) for name in weights for each in _LAYER.findall(name)), default=-1)
    for key in ("num_hidden_layers", "n_layer"):
        layers = part.get(key)
        if found and isinstance(layers, int) and layers > found:
            raise FileError(f"config.json: {key} is {layers}, and the weights have {found} layers")
    sizes = {size for weight in weights.values() for size in weight.shape}
    # A router may have more outputs than there are experts.
    num_experts = max(len({match[2] for match in map(_EXPERT.match, weights) if match}), 1)
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        number = part.get(key)
        if isinstance(number, int) and number > num_experts and number not in sizes:
            raise FileError(f"config.json: {key} is {number}, and no weight has that size")
    _check_experts(weights)
    if all(each.get("quantization_config") is None for each in (config, part)):
        _check_plain(weights)


def _check_experts(weights: Mapping[str, Weight]) -> None:
    """Raises FileError unless all experts of a layer have the same matrices, which are joined."""
    layers: dict[str, dict[str, set[str]]] = {}
    for name in weights:
        if match := _EXPERT.match(name):
            before, number, after = match.groups()
            matrix = after.rpartition(".")[0] or after
            layers.setdefault(before, {}).setdefault(number, set()).add(matrix)
    for before, experts in layers.items():
        whole = set().union(*experts.values())
        for number in map(str, range(len(experts))):
            if lacking := whole - experts.get(number, set()):
                raise FileError(
                    f"{before}{number}.{min(lacking)} is missing; other experts have it"
                )


def _check_plain(weights: Mapping[str, Weight]) -> None:
    """Raises FileError for matrices of experts that are unlike, or packed in an unknown way."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, weight in weights.items():
        if name.endswith("weight") and weight.dtype[0] in "IUC":
            raise FileError(
                f"{name} is {weight.dtype}, and config.json has no quantization_config that says "
                "what it means"
            )
        if match := _EXPERT.match(name):
            shape = shapes.setdefault(f"{match[1]}*.{match[3]}", weight.shape)
            if shape != weight.shape:
                raise FileError(
                    f"{name} has the shape {list(weight.shape)}, and another expert's {list(shape)}"
                )


def pickles(directory: Path) -> list[str]:
    """Returns the names of files that look like pickled weights."""
    return sorted(file.name for pattern in _PICKLED for file in directory.glob(pattern))


def _read_existing(path: Path, otherwise: str) -> dict[str, Weight]:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise FileError(f"{path.name} is {otherwise}") from None


def _nothing(directory: Path) -> str:
    pickled = pickles(directory)
    if pickled:
        return (
            f"{pickled[0]} is a pickle, which can run code when it is read, and there are no "
            "*.safetensors; convert the weights with save_pretrained"
        )
    others = sorted(file.name for file in directory.glob("*.safetensors"))
    if others:
        return f"{others[0]} is there, but neither {SINGLE} nor {INDEX}"
    return f"there are no *.safetensors: neither {SINGLE} nor {INDEX}"


def _shards(directory: Path) -> dict[str, str]:
    """Returns in which file each weight is."""
    index = read_object(directory / INDEX, _MAX_INDEX_BYTES)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FileError(f"{INDEX}: weight_map must be an object with a file for each weight")
    if not isinstance(index.get("metadata"), dict):
        raise FileError(f"{INDEX}: metadata must be an object, which may be empty")
    for name, file in shards.items():
        is_beside = isinstance(file, str) and Path(file).name == file
        if not is_beside or not file.endswith(".safetensors"):
            raise FileError(
                f"{INDEX}: weight_map.{name[:100]} is {shown(file)}; it must be a "
                "*.safetensors beside the index"
            )
    return shards
