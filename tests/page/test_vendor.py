"""Vendored libraries are what their packages have; the page's modules by Node's test runner."""

import json
import re
from pathlib import Path

import pytest

from optimist_gateway.api.page.router import STATIC
from tests.command import run
from tests.stack import REPOSITORY

PACKAGES = REPOSITORY / "node_modules"
VENDOR = STATIC / "vendor"


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        ("preact.js", "preact/dist/preact.mjs"),
        ("hooks.js", "preact/hooks/dist/hooks.mjs"),
        ("htm.js", "htm/dist/htm.module.js"),
        ("uplot.js", "uplot/dist/uPlot.iife.min.js"),
        ("uplot.css", "uplot/dist/uPlot.min.css"),
        *((f"LICENSE.{package}", f"{package}/LICENSE") for package in ("preact", "htm", "uplot")),
    ],
)
def test_a_file_is_that_of_its_package_as_a_module_without_map(file: str, origin: str) -> None:
    text = (PACKAGES / origin).read_text(encoding="utf-8")
    text = re.sub(r"//# sourceMappingURL=.*\n?", "", text)
    changed = text.replace('from"preact"', 'from"./preact.js"').rstrip()
    module = "\nexport default uPlot;" if file == "uplot.js" else ""
    assert (VENDOR / file).read_text(encoding="utf-8").rstrip() == changed + module


@pytest.mark.parametrize("package", ["preact", "htm", "uplot"])
def test_the_note_names_the_version(package: str) -> None:
    version = json.loads((PACKAGES / package / "package.json").read_text())["version"]
    wanted = json.loads((REPOSITORY / "package.json").read_text())["devDependencies"][package]
    assert version == wanted
    assert f"{package} {version}" in (VENDOR / "README.md").read_text(encoding="utf-8")


def test_modules() -> None:
    files = sorted(Path(__file__).parent.glob("*.test.js"))
    assert files
    imports = "".join(f"import {json.dumps(str(path))};" for path in files)
    run("node", "--input-type=module", "--eval", imports, timeout=120)
