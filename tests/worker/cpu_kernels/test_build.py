"""Kernels are compiled once, where there is a compiler; without them PyTorch computes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optimist_worker.cpu_kernels import build

SCRIPT = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from pathlib import Path
from optimist_worker.cpu_kernels import build
build.FOLDER = Path(sys.argv[1])
import torch
from optimist_worker.core.attention.paged_attention import ATTEND
print(ATTEND.kernel_for(torch.empty(0)), "computes")
"""


def run(folder: Path, cache: Path, compiler: str) -> str:
    """Asks for a kernel in a process of its own."""
    environment = {**os.environ, "CXX": compiler, "OPTIMIST_HOME": str(cache)}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with the sources alone, where others may write."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for source in (*build.FOLDER.glob("*.cpp"), *build.FOLDER.glob("*.h")):
        shutil.copy(source, folder)
    return folder


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_first_process_compiles_and_the_next_needs_no_compiler(
    sources: Path, tmp_path: Path
) -> None:
    first = run(sources, tmp_path / "cache", "c++")
    assert "compiling the CPU kernels" in first
    assert "function attend at" in first
    again = run(sources, tmp_path / "cache", "/nonexistent/c++")
    assert "compiling" not in again
    assert "function attend at" in again
    # A changed source is another version.
    with (sources / "kernels.cpp").open("a") as source:
        source.write("// changed\n")
    assert "None computes" in run(sources, tmp_path / "cache", "/nonexistent/c++")


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("/nonexistent/c++", "No such file"), ("false", "false fails")],
)
def test_without_a_compiler_pytorch_computes(
    sources: Path, tmp_path: Path, compiler: str, reason: str
) -> None:
    shown = run(sources, tmp_path / "cache", compiler)
    assert "plain PyTorch computes, which is slower" in shown
    assert reason in shown
    assert "None computes" in shown
    assert list(sources.glob("*.so")) == []


def test_other_machines_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ImportError, match="no CPU kernels for riscv64"):
        build.compile_kernels()
