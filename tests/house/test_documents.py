"""Documents are readable as text, and their links lead somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.stack import REPOSITORY

LONGEST_LINE = 100
LONGEST_ROW = 120
"""Of a table."""
_LISTED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
)
DOCUMENTS = [name for name in _LISTED.stdout.splitlines() if (REPOSITORY / name).exists()]
PACKAGES = [*REPOSITORY.glob("services/*/optimist_*"), REPOSITORY]
"""What file names on pages for developers are relative to."""
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(path: Path) -> str:
    """Returns a document without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Returns the anchors of the headings, as they are made from their texts."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    texts = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_line_is_long_and_links_lead_somewhere(name: str) -> None:
    page = REPOSITORY / name
    for number, line in enumerate(page.read_text().splitlines(), 1):
        most = LONGEST_ROW if line.startswith("|") else LONGEST_LINE
        assert len(line) <= most, f"{name}:{number}"
    for target in _LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        found = page.parent / path if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), target


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(_LINK.findall((REPOSITORY / "docs" / "README.md").read_text()))


@pytest.mark.parametrize("name", ["architecture.md", "changing.md"])
def test_every_file_that_a_page_names_exists(name: str) -> None:
    page = (REPOSITORY / "docs" / name).read_text()
    names = re.findall(r"`([\w/]+\.(?:py|proto|js|h|cpp))`", page)
    assert len(names) > 40
    assert [name for name in names if not any((root / name).exists() for root in PACKAGES)] == []
