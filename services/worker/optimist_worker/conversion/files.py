"""The GGUF file that is read, what transformers would not read of it, and the directory to be made.

Nothing here imports torch, so that a file that is not whole is refused at once.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader

from optimist_common.errors import SetupError, one_line

_MAGIC = b"GGUF"
_STOP_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """Values by their names; of arrays, only the short ones."""
    tensor_types: Mapping[str, GGMLQuantizationType]
    """How each tensor is stored, by its name."""

    @property
    def architecture(self) -> str:
        """Name of the model's architecture, such as `llama`."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def own_dtype(self) -> str:
        """The dtype to compute in on a GPU.

        It is that of the weights if they are floats. Norms are float32 in every file, so another
        dtype prevails. Packed weights name none; bfloat16 has the range of float32.
        """
        types = set(self.tensor_types.values()) - {GGMLQuantizationType.F32}
        if not types:
            return "float32"
        return "float16" if types == {GGMLQuantizationType.F16} else "bfloat16"

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens that end an answer: end of text, of a turn, of a message."""
        found = (self.metadata.get(f"tokenizer.ggml.{name}") for name in _STOP_TOKENS)
        return list(dict.fromkeys(int(each) for each in found if each is not None))


def read_gguf(path: Path) -> GgufFile:
    """Reads the header and checks that the file holds every tensor that it lists.

    Raises:
        SetupError: There is no such file, it is no GGUF file, or it is truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise SetupError(f"{path} is not a GGUF file")
        reader = GGUFReader(path)
        metadata = {
            name: field.contents()
            for name, field in reader.fields.items()
            if len(field.data) <= _LONGEST_ARRAY
        }
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError, MemoryError) as error:
        # The reader maps the file and takes slices, which come out too short.
        raise SetupError(f"{path} is truncated or damaged: {one_line(error)}") from None
    return GgufFile(path, metadata, {each.name: each.tensor_type for each in reader.tensors})


_LONGEST_ARRAY = 64


def unread_part(file: GgufFile, config: Any) -> str:
    """Returns what the config that transformers made of the file leaves out, if anything.

    It would do so without a word, and the text would be wrong.
    """
    factors = sorted(name for name in file.tensor_types if name.startswith("rope_"))
    if factors:
        return f"its rotary factors ({factors[0]})"
    rope = _rope_parameters(config.get_text_config())
    prefix = f"{file.architecture}.rope"
    scaling = file.metadata.get(f"{prefix}.scaling.type", "none")
    if scaling != "none" and all(each.get("rope_type") == "default" for each in rope):
        return f"its rotary scaling ({scaling})"
    base = file.metadata.get(f"{prefix}.freq_base")
    if base is not None and not _has(base, (each.get("rope_theta") for each in rope)):
        return f"its rotary base ({base:g})"
    return ""


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Returns the rotary parameters, several if layers differ in them."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [each for each in parameters.values() if isinstance(each, dict)]
    return nested or [parameters]


def _has(value: float, found: Iterable[float | None]) -> bool:
    # The file has it as float32.
    return any(each is not None and abs(each - value) <= 1e-6 * abs(value) for each in found)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields an empty directory beside `path` that is renamed to it at the end.

    After an exception it is removed. What a killed process left is removed by the next one, and a
    lock on the directory keeps two processes apart.

    Raises:
        SetupError: `path` exists, or another process is making it.
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir(exist_ok=True)
    handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"another process is making {path}; wait for it") from None
        try:
            require_new(path)
            for entry in partial.iterdir():
                entry.unlink()
            yield partial
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(handle)


def require_new(path: Path) -> None:
    """Raises SetupError if there is something at `path`."""
    if path.exists() or path.is_symlink():
        raise SetupError(f"{path} exists already; remove it or name another directory")
