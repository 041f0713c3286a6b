"""Checks of options that several commands have."""

import argparse
from pathlib import Path

from optimist_common.errors import SetupError


def require_positive(options: argparse.Namespace, *names: str) -> None:
    """Raises SetupError if one of some options is less than 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise SetupError(f"--{name.replace('_', '-')}: must be at least 1")


def require_file_name(out: Path) -> None:
    """Raises SetupError if `--out` can be no file."""
    if out.is_dir() or not out.parent.is_dir():
        raise SetupError(f"--out: {out} is not a file in a directory that exists")


def write_out(out: Path, data: bytes) -> None:
    """Writes `--out`; raises SetupError if that fails."""
    try:
        out.write_bytes(data)
    except OSError as error:
        raise SetupError(f"--out: cannot write {out}: {error.strerror}") from None
