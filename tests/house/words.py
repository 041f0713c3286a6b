"""`python -m tests.house.words`: words that were given up, see the glossary; 1 if there are any.

Searches identifiers, comments, docstrings, errors and docs. Counts by folder with `--count`.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.stack import REPOSITORY

WORDS = (
    *("told", "telling", "worded", "outlook", "sight", "residents"),
    *("comes of", "is refused by name"),
)
# Part of an identifier, of a sentence at its beginning, or alone.
_GIVEN_UP = re.compile(
    "|".join(
        rf"(?<![A-Za-z]){word}(?![a-z])|(?<![A-Z]){word.capitalize()}(?![a-z])" for word in WORDS
    )
    # A verb in prose, but no name.
    + r"|(?<![A-Za-z])Claims(?![a-z])|\w_claims\b|\bclaims(?=_\w|\.\w|\)| =|: )"
)
_SUFFIXES = (".py", ".proto", ".md", ".js", ".html", ".yaml", ".yml", ".toml", ".sh", ".css")
# They name the words, or are the history of what was.
_EXEMPT = (
    *("CHANGELOG.md", "docs/adr/", "docs/glossary.md", "tests/house/words.py"),
    *("models/", "protos/gen/"),
)


def find_words(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yields the file, line number and line of each use below a checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if name.endswith(_SUFFIXES) and not name.startswith(_EXEMPT):
            for number, line in enumerate((folder / name).read_text().splitlines(), 1):
                if _GIVEN_UP.search(line):
                    yield name, number, line.strip()


def main() -> int:
    """Prints the uses, or how many each folder has; returns the exit code."""
    found = list(find_words(REPOSITORY))
    if sys.argv[1:] == ["--count"]:
        counts = Counter("/".join(name.split("/")[:-1][:2]) or name for name, _, _ in found)
        sys.stdout.writelines(f"{count:6} {folder}\n" for folder, count in counts.most_common())
    sys.stderr.writelines(f"{name}:{number}: {line}\n" for name, number, line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
