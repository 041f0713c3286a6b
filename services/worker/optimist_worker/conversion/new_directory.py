"""Directories that appear when they are complete, or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optimist_common.errors import SetupError


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
            _empty(partial)
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


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        entry.unlink()
