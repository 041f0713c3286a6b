"""The Makefile says in one line what is missing, and serves what is there."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifest import REPOSITORY

MAKEFILE = REPOSITORY / "Makefile"


def make(*arguments: str, directory: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "-C", str(directory), *arguments]
    # The tests may themselves be run by make, whose variables say so.
    outer = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS", "MODEL", "ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_help_is_the_default_and_names_every_target() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    listed = re.findall(r"^  make (\S+) +\S", make().stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())


def test_an_unfit_or_missing_python_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    python = tmp_path / "python"
    for body, message in (
        ("*version_info*) exit 1;; *) echo Python 3.9.2;;", "Python 3.9.2 is too"),
        ("*ensurepip*) exit 1;;", "cannot make virtual environments"),
    ):
        python.write_text(f'#!/bin/sh\ncase "$*" in {body} esac\n')
        python.chmod(0o755)
        result = make("setup", f"PYTHON={python}", directory=tmp_path)
        explained, status = result.stderr.splitlines()
        assert result.returncode != 0
        assert message in explained
        assert status.startswith("make: ***")
    result = make("setup", "PYTHON=no-such-python", directory=tmp_path)
    assert result.stderr.startswith("no-such-python is missing: install Python 3.11 or newer\n")
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is set up, without a package index; `optimist` prints its arguments."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    for name, line in (("pip", "echo ERROR: no index >&2; exit 1"), ("optimist", 'echo "$*"')):
        (scripts / name).write_text(f"#!/bin/sh\n{line}\n")
        (scripts / name).chmod(0o755)
    for name in ("installed", "aligner", "kernels"):
        (tmp_path / ".venv" / name).touch()
    return tmp_path


def test_up_without_a_network_says_so_in_a_line_and_serves_the_bundled_model(
    checkout: Path,
) -> None:
    done = make("up", "ARGS=--port 7", directory=checkout)
    assert done.stdout.endswith("\nserve models/tiny-edit --port 7\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("SmolLM2 cannot be downloaded; models/tiny-edit is served")
    assert line.endswith("ERROR: no index")
    assert make("smollm2", directory=checkout).returncode != 0
    # What is there or named is served.
    assert make("up", "MODEL=mine", directory=checkout).stdout == "serve mine\n"
    (checkout / "models" / "smollm2").mkdir(parents=True)
    assert make("up", directory=checkout).stdout == "serve models/smollm2\n"
