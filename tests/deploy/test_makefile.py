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
    outer = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_help_is_the_default_and_names_every_target() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    listed = re.findall(r"^  make (\S+) +\S", make().stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())


def test_ci_runs_what_a_person_runs() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert script.splitlines()[-1] == "make test"
    subprocess.run(["bash", "-n", str(REPOSITORY / ".ci" / "run")], check=True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("*version_info*) exit 1;; *) echo Python 3.9.2;;", "Python 3.9.2 is too"),
        ("*ensurepip*) exit 1;;", "cannot make virtual environments"),
    ],
    ids=["too old", "without venv"],
)
def test_an_unfit_or_missing_python_is_refused_in_one_line(
    tmp_path: Path, body: str, message: str
) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in {body} esac\n')
    python.chmod(0o755)
    result = make("setup", f"PYTHON={python}", directory=tmp_path)
    explained, status = result.stderr.splitlines()
    assert result.returncode != 0
    assert message in explained
    assert status.startswith("make: ***")
    assert not (tmp_path / ".venv").exists()
    result = make("setup", "PYTHON=no-such-python", directory=tmp_path)
    assert result.stderr.startswith("no-such-python is missing: install Python 3.11 or newer\n")
