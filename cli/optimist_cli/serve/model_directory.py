"""The model of `optimist serve`: a directory, a hub name or a GGUF file, converted once."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from optimist_common.errors import SetupError
from optimist_common.model_files.gguf_parts import gguf_parts, gguf_stem
from optimist_common.process import end_with_this_process
from optimist_common.settings import home_directory

# Changes where a conversion makes something else of the same file, so that it is made again.
_CONVERSION = b"2"


async def find_directory(model: str, say: Callable[[str], None]) -> str:
    """Returns a model's directory; that of a GGUF file is in OPTIMIST_HOME, made if needed.

    It is found by the file's content, so that a changed file is converted again. Its last part is
    the file's name.

    Args:
        model: GGUF file, directory or hub name; the latter two are returned as they are.
        say: Called with a line for the user before a conversion.

    Raises:
        SetupError: The file cannot be read or converted, or the directory is not there.
    """
    if not model.lower().endswith(".gguf"):
        await asyncio.to_thread(_require_hub_name_or_directory, model)
        return model
    try:
        directory, is_there = await asyncio.to_thread(_kept, model)
    except OSError as error:
        raise SetupError(f"--model: cannot read {model}: {error.strerror or error}") from None
    if not is_there:
        say(f"converting {model} to {directory} (once)")
        await _convert(model, str(directory))
    return str(directory)


def _require_hub_name_or_directory(model: str) -> None:
    """Refuses what is neither, which transformers would look for on a hub for a minute.

    A hub name is OWNER/NAME. No owner is called `models`: what begins so is one of the models that
    a checkout of the repository has.
    """
    path = Path(model).expanduser()
    is_hub_name = model.count("/") == 1 and not model.startswith(("/", "~", ".", "models/"))
    if not path.exists() and (not is_hub_name or path.parent.is_dir()):
        raise SetupError(
            f"--model: {model} is not there; name a model directory, a GGUF file or a hub model "
            "(OWNER/NAME). The package has no models: models/tiny-edit is in Optimist's repository"
        )


def _kept(model: str) -> tuple[Path, bool]:
    """Returns where the directory of a GGUF file is kept, and whether it is there."""
    file = Path(model).expanduser()
    total = hashlib.sha256(_CONVERSION)
    for part in gguf_parts(file):
        with part.open("rb") as content:
            total.update(hashlib.file_digest(content, "sha256").digest())
    digest = total.hexdigest()
    directory = home_directory(os.environ) / "models" / digest[:32] / gguf_stem(file)
    return directory, directory.is_dir()


async def _convert(model: str, directory: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "optimist_worker.conversion", model, directory),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        # Ctrl-C goes to this process alone, which waits until the other one has tidied up.
        start_new_session=True,
        preexec_fn=end_with_this_process(signal.SIGTERM),
    )
    try:
        _, log = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.communicate()
        raise
    if process.returncode:
        lines = log.decode(errors="replace").splitlines() or ["it printed nothing"]
        raise SetupError(f"--model: {lines[-1].removeprefix('optimist convert: ')}")
