"""Compiles the kernels once for each version of them, and loads them.

`python -m optimist_worker.cpu_kernels.build` compiles ahead, so that whoever serves needs no
compiler.
"""

import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from optimist_common.errors import one_line

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
"""Of the sources, and of what is compiled if it can be written."""
TARGETS = ("avx512_bf16", "avx512", "avx2")
"""Instruction sets, the fastest first."""
_OPTIONS = ("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden")
_COMPILE_SECONDS = 300.0


@cache
def load() -> ModuleType | None:
    """Returns the compiled kernels for this CPU, or None if there are none, saying why in the log.

    The first call compiles them, which takes some seconds, if no process did so before.
    """
    try:
        module = _import(compile_kernels())
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        logger.warning("plain PyTorch computes, which is slower: %s", one_line(error))
        return None
    return module


def compile_kernels() -> Path:
    """Compiles what is not compiled yet, and returns the file.

    Raises OSError without a compiler or where nothing can be written, ImportError on a machine that
    has no kernels or if they do not compile, subprocess.TimeoutExpired.
    """
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        raise ImportError(f"no CPU kernels for {platform.machine()} and {sys.platform}")
    sources = [FOLDER / "kernels.cpp", *sorted(FOLDER.glob("*.h"))]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    key.update(repr((_OPTIONS, sysconfig.get_config_var("EXT_SUFFIX"))).encode())
    name = f"compiled-{key.hexdigest()[:16]}.so"
    home = os.environ.get("OPTIMIST_HOME") or Path.home() / ".optimist"
    folders = [FOLDER, Path(home, "kernels")]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    folder = next((each for each in folders if os.access(each, os.W_OK)), folders[-1])
    folder.mkdir(parents=True, exist_ok=True)
    logger.info("compiling the CPU kernels (some seconds)")
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        output = Path(scratch, name)
        include = f"-I{sysconfig.get_path('include')}"
        command = [*compiler, *_OPTIONS, include, str(sources[0]), "-o", str(output)]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
        if done.returncode:
            raise ImportError(f"{compiler[0]} fails: {done.stderr.strip()[:200]}")
        # Another process may do the same; whichever is last replaces the other's, which is equal.
        output.replace(folder / name)
    return folder / name


def _import(path: Path) -> ModuleType:
    # The kernels ask PyTorch's OpenMP for the number of threads, so its library has to be first.
    import torch  # noqa: F401

    loader = importlib.machinery.ExtensionFileLoader("compiled", str(path))
    spec = importlib.util.spec_from_file_location("compiled", path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    use_fastest(module)
    return module


def use_fastest(module: ModuleType) -> None:
    """Chooses the fastest instruction set of this CPU; raises ImportError if it has none."""
    if not any(module.use(target) for target in TARGETS):
        raise ImportError("the CPU has no AVX2")


if __name__ == "__main__":
    try:
        print(compile_kernels())  # noqa: T201
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        sys.exit(one_line(error))
