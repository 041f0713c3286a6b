"""`optimist convert FILE.gguf DIRECTORY`: makes a directory of it that the worker serves."""

import os
import signal
import sys
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from optimist_common.errors import run_or_explain
from optimist_common.settings import ServiceSettings, load_settings
from optimist_worker.conversion.files import read_gguf, require_new


class ConvertSettings(ServiceSettings):
    """Converts a model: optimist convert FILE.gguf DIRECTORY.

    The directory has the weights as safetensors, unpacked to float32, and the tokenizer with its
    chat template. It appears when it is complete.
    """

    section: ClassVar[str] = "convert"
    arguments: ClassVar[tuple[str, ...]] = ("file", "directory")

    file: str = Field(description="GGUF file")
    directory: str = Field(description="directory to make")


def main(arguments: list[str] | None = None) -> int:
    """Runs `optimist convert`; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_or_explain("optimist convert", lambda: _convert(words))


def _convert(words: list[str]) -> None:
    settings = load_settings(ConvertSettings, words)
    path, directory = Path(settings.file).expanduser(), Path(settings.directory).expanduser()
    require_new(directory)
    file = read_gguf(path)
    # As an exception, so that what was written so far is removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not sys.stderr.isatty():
        # transformers draws a bar with tqdm, which reads this when it is imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging as transformers_logging

    from optimist_worker.conversion.convert import convert

    # It reports missing weights as a table; the error names them.
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    convert(file, directory)
    print(f"{directory} has the model of {path.name}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
