"""Vendored libraries are what their packages have; the page's modules by Node's test runner."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from optimist_gateway.fronts.page.router import STATIC

REPOSITORY = Path(__file__).parents[2]
PACKAGES = REPOSITORY / "node_modules"
VENDOR = STATIC / "vendor"
MAX_BYTES = 100_000


def same(text: str) -> str:
    return text


def without_map(text: str) -> str:
    return re.sub(r"//# sourceMappingURL=.*\n?", "", text)


def beside_preact(text: str) -> str:
    return without_map(text).replace('from"preact"', 'from"./preact.js"')


def as_module(text: str) -> str:
    return f"{text}export default uPlot;\n"


@pytest.mark.parametrize(
    ("file", "origin", "change"),
    [
        ("preact.js", "preact/dist/preact.mjs", without_map),
        ("hooks.js", "preact/hooks/dist/hooks.mjs", beside_preact),
        ("htm.js", "htm/dist/htm.module.js", same),
        ("uplot.js", "uplot/dist/uPlot.iife.min.js", as_module),
        ("uplot.css", "uplot/dist/uPlot.min.css", same),
        ("LICENSE.preact", "preact/LICENSE", same),
        ("LICENSE.htm", "htm/LICENSE", same),
        ("LICENSE.uplot", "uplot/LICENSE", same),
    ],
)
def test_a_file_is_that_of_its_package(
    file: str, origin: str, change: Callable[[str], str]
) -> None:
    text = (PACKAGES / origin).read_text(encoding="utf-8")
    assert (VENDOR / file).read_text(encoding="utf-8").rstrip() == change(text).rstrip()


@pytest.mark.parametrize("package", ["preact", "htm", "uplot"])
def test_the_note_names_the_version(package: str) -> None:
    version = json.loads((PACKAGES / package / "package.json").read_text())["version"]
    wanted = json.loads((REPOSITORY / "package.json").read_text())["devDependencies"][package]
    assert version == wanted
    assert f"{package} {version}" in (VENDOR / "README.md").read_text(encoding="utf-8")


def test_libraries_are_small() -> None:
    assert sum(path.stat().st_size for path in VENDOR.glob("*.*s*")) < MAX_BYTES


def test_modules() -> None:
    files = sorted(str(path) for path in Path(__file__).parent.glob("*.test.js"))
    assert files
    ended = subprocess.run(
        ["node", "--test", *files], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
