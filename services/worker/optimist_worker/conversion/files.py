"""The GGUF file that is read, and the directory to be made.

Nothing here imports torch, so that a file that is not whole is refused at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor

from optimist_common.errors import SetupError, one_line
from optimist_common.model_files.gguf_parts import gguf_parts

_MAGIC = b"GGUF"
_STOP_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file, or all files of one that is split."""

    path: Path
    metadata: Mapping[str, Any]
    """Values by their names."""
    tensors: Mapping[str, ReaderTensor]
    """By their names; what they hold is read when it is used."""
    readers: Sequence[GGUFReader] = ()
    """One for each part."""

    @property
    def architecture(self) -> str:
        """Name of the model's architecture, such as `llama`."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def name(self) -> str:
        """What the file calls the model; may be empty."""
        return str(self.metadata.get("general.name", ""))

    @property
    def own_dtype(self) -> str:
        """The dtype to compute in on a GPU.

        It is that of the weights if they are floats. Norms are float32 in every file, so another
        dtype prevails. Packed weights name none; bfloat16 has the range of float32.
        """
        types = {each.tensor_type for each in self.tensors.values()} - {GGMLQuantizationType.F32}
        if not types:
            return "float32"
        return "float16" if types == {GGMLQuantizationType.F16} else "bfloat16"

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens that end an answer: end of text, of a turn, of a message."""
        found = (self.metadata.get(f"tokenizer.ggml.{name}") for name in _STOP_TOKENS)
        return list(dict.fromkeys(int(each) for each in found if each is not None))

    def refusal(self, fault: str) -> SetupError:
        """Returns the error that says why this file is not converted."""
        return SetupError(f"{self.path} ({self.architecture}) cannot be converted: {fault}")


def read_gguf(path: Path) -> GgufFile:
    """Reads the header and checks that the file holds every tensor that it lists.

    A file that is split is read with its other parts, which lie beside it. Raises SetupError if it
    is no whole GGUF file of this machine's byte order, or a part of it is missing.
    """
    first = _read(path)
    parts, read, count = [path], [first], int(first[1].get("split.count", 1))
    if count > 1:
        parts = gguf_parts(path)
        if len(parts) != count:
            raise SetupError(
                f"{path} is one of {count} parts, and not called so; name the first as "
                f"NAME-00001-of-{count:05}.gguf, with the others beside it"
            )
        read = [first if part == path else _read(part) for part in parts]
        for index, (part, (_, values)) in enumerate(zip(parts, read, strict=True)):
            if (values.get("split.no"), values.get("split.count")) != (index, count):
                raise SetupError(f"{part} is not part {index + 1} of {count}, as its name says")
    readers, metadata = [reader for reader, _ in read], read[0][1]
    tensors = {each.name: each for reader in readers for each in reader.tensors}
    if len(tensors) != metadata.get("split.tensors.count", len(tensors)):
        raise SetupError(
            f"{path}: its parts have {len(tensors)} tensors, and not as many as it says"
        )
    return GgufFile(path, metadata, tensors, readers)


def _read(path: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """Returns one file and its metadata."""
    try:
        with path.open("rb") as file:
            magic, version = file.read(len(_MAGIC)), file.read(4)
        if magic != _MAGIC:
            raise SetupError(f"{path} is not a GGUF file")
        if version[:2] == b"\0\0" and len(version) == 4:
            raise SetupError(f"{path} is big-endian; make a little-endian file of it first")
        reader = GGUFReader(path)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError, MemoryError) as error:
        # The reader maps the file and takes slices, which come out too short.
        raise SetupError(f"{path} is truncated or damaged: {one_line(error)}") from None


def join(file: GgufFile, path: Path) -> None:
    """Writes all parts of a file as one, which is what transformers reads."""
    writer = GGUFWriter(path, file.architecture)
    for name, field in file.readers[0].fields.items():
        if name.startswith(("GGUF.", "split.")) or name == "general.architecture":
            continue
        kind = field.types[0]
        of_array = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=of_array)
    for tensor in file.tensors.values():
        data = tensor.data
        writer.add_tensor_info(tensor.name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in file.tensors.values():
        writer.write_tensor_data(tensor.data)
    writer.close()


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields an empty directory that is renamed to `path` at the end, or removed after an error.

    Raises SetupError if `path` exists, OSError if it cannot be written.
    """
    require_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
        partial = Path(beside, path.name)
        partial.mkdir()
        yield partial
        require_new(path)
        partial.rename(path)


def require_new(path: Path) -> None:
    """Raises SetupError if there is something at `path`."""
    if path.exists() or path.is_symlink():
        raise SetupError(f"{path} exists already; remove it or name another directory")
