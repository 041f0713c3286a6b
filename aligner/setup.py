"""Compiles the package by mypyc where there is a C compiler; elsewhere it stays pure Python."""

import os
import tempfile
from pathlib import Path
from typing import cast

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

ROOT = Path(__file__).parent
_INTERPRETED = ("__init__", "algorithm", "cost", "lines", "prompt_blocks", "vocabulary")
"""Modules that others derive classes from, or in which little time is spent."""


def extensions(directory: str) -> list[Extension]:
    """Returns what to compile: nothing without a compiler or headers, or if that is asked for.

    Args:
        directory: Where to write C and what belongs to it.
    """
    if os.environ.get("OPTIMIST_ALIGNER_PURE") or not _can_compile(directory):
        return []
    from mypyc.build import mypycify

    paths = (ROOT / "optimist_aligner").rglob("*.py")
    modules = sorted(str(path.relative_to(ROOT)) for path in paths if path.stem not in _INTERPRETED)
    options = ["--config-file=", f"--cache-dir={directory}/mypy", "--strict"]
    compiled = mypycify(
        [*options, *modules], opt_level="2", group_name="optimist_aligner", target_dir=directory
    )
    return cast(list[Extension], compiled)


def _can_compile(directory: str) -> bool:
    source = Path(directory, "probe.c")
    source.write_text("#include <Python.h>\n")
    command = build_ext(Distribution({"ext_modules": [Extension("probe", [str(source)])]}))
    command.build_lib = command.build_temp = directory
    try:
        command.ensure_finalized()
        command.run()
    except (CCompilerError, PlatformError):
        return False
    return True


if __name__ == "__main__":
    os.chdir(ROOT)
    # Nothing of an earlier build may come into a wheel.
    with tempfile.TemporaryDirectory() as base:
        setup(ext_modules=extensions(base), options={"build": {"build_base": base}})
