"""Options that several commands have, their checks, and the files that options name."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optimist_common.errors import SetupError


def require_positive(options: argparse.Namespace, *names: str) -> None:
    """Raises SetupError if one of some options is less than 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise SetupError(f"--{name.replace('_', '-')}: must be at least 1")


def add_run_options(parser: argparse.ArgumentParser, learning_rate: float) -> None:
    """Adds the options of all runs that train something.

    Args:
        parser: Of the command.
        learning_rate: The default.
    """
    parser.add_argument("--model", required=True, help="directory or hub name of the model")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--steps", type=int, default=1000, help="0 only measures")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens per step")
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-length", type=int, default=2048, help="longest example, in tokens")
    parser.add_argument(
        "--bf16", action="store_true", help="products in bfloat16, weights in float32"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch decides")


def require_run_options(options: argparse.Namespace) -> None:
    """Raises SetupError if an option of `add_run_options` cannot be."""
    require_positive(options, "batch_tokens", "max_length")
    if options.steps < 0 or not options.learning_rate > 0:
        raise SetupError("--steps must not be negative, and --learning-rate must be above 0")


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


def read_json_lines(path: Path, flag: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the object on each line of a file, with the file and line as errors name them.

    Args:
        path: The file; blank lines are left out.
        flag: The option that names the file, for errors.

    Raises:
        SetupError: The file cannot be read, or a line is no JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise SetupError(f"{flag}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SetupError(f"{flag}: {path} is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise SetupError(f"{flag}: {where} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise SetupError(f"{flag}: {where} is not an object")
        yield where, row
