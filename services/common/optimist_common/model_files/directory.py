"""A model directory as a whole: every service refuses the same ones in the same words."""

from pathlib import Path
from typing import Any

from optimist_common.errors import SetupError
from optimist_common.model_files.config import check_config, check_generation_config
from optimist_common.model_files.json_file import FileError, read_object, shown
from optimist_common.model_files.tokenizer import check_tokenizer_files
from optimist_common.model_files.weights import check_fit, read_headers


def find_directory(name: str, flag: str) -> Path | None:
    """Returns a model's directory; None for the name of a hub.

    Raises:
        SetupError: It is neither; the message begins with `flag`.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix.lower() == ".gguf":
        raise SetupError(
            f"{flag}: {name} is a file; convert it with optimist convert {name} DIRECTORY"
        )
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1
    if looks_like_path or path.exists():
        raise SetupError(f"{flag}: {name} is not a directory; give one with a config.json")
    return None


def check_model(name: str, flag: str, *, needs_weights: bool) -> None:
    """Refuses a directory whose config or weight files are wrong; names of a hub pass.

    Nothing is allocated by what the files say, and no weight is read.

    Raises:
        SetupError: A file is missing or wrong; the message names flag, file and key.
    """
    directory = find_directory(name, flag)
    if directory is None:
        return
    try:
        config = _read_config(directory)
        if config is None:
            raise FileError("there is no config.json; it is not a model of transformers")
        if not config.get("model_type"):
            raise FileError("config.json: model_type is missing")
        if needs_weights:
            check_fit(read_headers(directory), config)
    except FileError as error:
        raise SetupError(f"{flag}: {name}: {error}") from None


def check_tokenizer(name: str, flag: str) -> None:
    """Refuses a directory whose tokenizer, or the config beside it, is wrong.

    It tries the tokenizer in a process of its own, which takes some 0.2 s of processor time. Names
    of a hub pass.

    Raises:
        SetupError: A file is wrong; the message names flag, file and key.
    """
    directory = find_directory(name, flag)
    if directory is None:
        return
    try:
        _read_config(directory)
        check_tokenizer_files(directory)
    except FileError as error:
        raise SetupError(f"{flag}: {name}: {error}") from None


def _read_config(directory: Path) -> dict[str, Any] | None:
    """Returns a config that has been checked; None if there is none."""
    adapter = directory / "adapter_config.json"
    if adapter.exists():
        base = read_object(adapter).get("base_model_name_or_path")
        raise FileError(
            f"adapter_config.json: it is an adapter of {shown(base)}; merge it into that model "
            "(merge_and_unload of peft) and save the whole with save_pretrained"
        )
    try:
        config = read_object(directory / "config.json")
    except FileNotFoundError:
        return None
    check_config(config)
    try:
        name = "generation_config.json"
        check_generation_config(read_object(directory / name), name)
    except FileNotFoundError:
        pass
    return config
