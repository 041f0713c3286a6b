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


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sources alone, where others may write."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for source in (*build.FOLDER.glob("*.cpp"), *build.FOLDER.glob("*.h")):
        shutil.copy(source, folder)
    monkeypatch.setattr(build, "FOLDER", folder)
    monkeypatch.setenv("OPTIMIST_HOME", str(tmp_path / "cache"))
    return folder


def test_the_first_process_compiles_and_the_next_needs_no_compiler(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiling takes some seconds: this compiler writes down what it is asked for.
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho "$@" > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"{compiler} -Wall")
    compiled = build.compile_kernels()
    asked = compiled.read_text()
    assert asked.startswith("-Wall -std=c++17 -O3 -fopenmp -fPIC -shared ")
    assert f"{sources / 'kernels.cpp'} -o " in asked
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert build.compile_kernels() == compiled
    # A changed source is another version.
    with (sources / "kernels.cpp").open("a") as source:
        source.write("// changed\n")
    with pytest.raises(OSError, match="No such file"):
        build.compile_kernels()


def test_without_a_compiler_pytorch_computes(sources: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(sources)]
    environment = {**os.environ, "CXX": "/nonexistent/c++"}
    shown = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "plain PyTorch computes, which is slower" in shown
    assert "No such file" in shown
    assert "None computes" in shown
    assert list(sources.glob("*.so")) == []


@pytest.mark.usefixtures("sources")
def test_a_compiler_that_fails_and_other_machines_have_no_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ImportError, match="false fails"):
        build.compile_kernels()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ImportError, match="no CPU kernels for riscv64"):
        build.compile_kernels()
