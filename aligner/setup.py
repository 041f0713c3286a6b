"""Compiles `src/` where there is a C++ compiler; elsewhere the package is pure Python."""

import os
import runpy
import tempfile
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

ROOT = Path(__file__).parent
# Products and sums are not fused, so that all processors compute the same.
_OPTIONS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fvisibility=hidden"]


def extensions(directory: str) -> list[Extension]:
    """Returns what to compile: nothing without a compiler or headers, or if that is asked for.

    Args:
        directory: Where to write what is compiled besides the sources.
    """
    if os.environ.get("OPTIMIST_ALIGNER_PURE") or not _can_compile(directory):
        return []
    import pybind11

    Path(directory, "layout.h").write_text(_write_layout())
    return [
        Extension(
            "optimist_aligner.native",
            ["src/native.cpp"],
            include_dirs=[directory, pybind11.get_include()],
            depends=[str(path.relative_to(ROOT)) for path in (ROOT / "src").glob("*.h")],
            extra_compile_args=_OPTIONS,
            language="c++",
        )
    ]


def _write_layout() -> str:
    """Returns the constants of the model's layout and of the classes of tokens, in C++."""
    lines = ["#pragma once", "#include <array>", "#include <cstdint>", "namespace aligner {"]
    for path in ("model/layout.py", "text/token_class.py"):
        for name, value in runpy.run_path(str(ROOT / "optimist_aligner" / path)).items():
            if name == "START":
                lines += [
                    f"constexpr int START_{block.upper()} = {value[block]};" for block in value
                ]
            elif not name.isupper() or name[0] == "_" or name == "BLOCKS":
                continue
            elif isinstance(value, tuple):
                numbers = ", ".join(map(str, value))
                lines.append(f"constexpr std::array<uint16_t, {len(value)}> {name}{{{numbers}}};")
            else:
                kind = type(value).__name__.replace("float", "double")
                lines.append(f"constexpr {kind} {name} = {value};")
    return "\n".join([*lines, "}  // namespace aligner", ""])


def _can_compile(directory: str) -> bool:
    source = Path(directory, "probe.cpp")
    # Columns are sent as they are in memory.
    is_little = "static_assert(std::endian::native == std::endian::little);"
    source.write_text(f"#include <Python.h>\n#include <bit>\n{is_little}\n")
    probe = Extension("probe", [str(source)], extra_compile_args=_OPTIONS, language="c++")
    command = build_ext(Distribution({"ext_modules": [probe]}))
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
