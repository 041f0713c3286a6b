"""`python -m tests.house`: how large the code is, and how much of it one request crosses.

files, lines  Python files; blanks, comments and docstrings count; percentiles by nearest rank.
request       Files of which a function runs for the second request of a fresh `optimist serve`: a
              greedy streamed chat with a prediction, traced in all processes and threads. Bodies of
              modules do not count, nor do functions that are not called at least twice as often as
              in six seconds without a request (health checks).
with records  The same, and the files that these import and that have nothing which could run:
              named tuples, constants, interfaces.
documents     Markdown files: pages of docs/ with the README, decision records, all others.
full folder   More than 15 Python files, not counting __init__.py.
make test     How long the last complete `make test` in this checkout took, lint too; its commit.

Before and after: `make -s house ARGS=--json > before.json`, then `make house ARGS="--before
before.json"`. An older checkout is measured with a copy of this folder in its tests.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from optimist_bench.harness.command import format_table
from tests.house.measures import full_folders, measure_sizes
from tests.house.request import imported_records, trace_request
from tests.stack import REPOSITORY

SERVICES = ("gateway", "scheduler", "worker", "proposer", "common")
GROUPS = {name: f"services/{name}" for name in SERVICES} | {
    name: name
    for name in ("services", "aligner", "engines", "cli", "client", "bench", "training", "tests")
}
DOCUMENTS = {
    "pages": ("README.md", ":(glob)docs/*.md"),
    "records": ("docs/adr",),
    "others": ("*.md", ":!README.md", ":!docs"),
}
LAST_TEST = REPOSITORY / "build" / "make-test"
"""Written by a `make test` of everything that passed."""

House = dict[str, Any]


def measure(with_request: bool) -> House:
    """Returns all figures, as JSON has them, with or without those of a request."""
    folders = {name: REPOSITORY / folder for name, folder in GROUPS.items()}
    packages = [
        path.parent
        for pattern in ("*/optimist_*/__init__.py", "*/*/optimist_*/__init__.py")
        for path in sorted(REPOSITORY.glob(pattern))
    ]
    house: House = {
        "groups": {name: measure_sizes(folder)._asdict() for name, folder in folders.items()},
        "full_folders": {
            _name(path): count
            for folder in folders.values()
            for path, count in full_folders(folder).items()
        },
        "documents": {name: _measure_text(patterns) for name, patterns in DOCUMENTS.items()},
        "make_test": LAST_TEST.read_text().strip() if LAST_TEST.exists() else "not recorded",
    }
    if with_request:
        ours = {path for package in packages for path in package.rglob("*.py")}
        # The supervisor of `optimist serve` only copies logs.
        crossed = {path for path in trace_request() & ours if "optimist_cli" not in path.parts}
        records = imported_records(crossed, packages)
        for name, folder in folders.items():
            house["groups"][name]["request"] = _count(crossed, folder)
            house["groups"][name]["with_records"] = _count(crossed | records, folder)
        house["request"] = sorted(map(_name, crossed))
        house["records"] = sorted(map(_name, records))
    return house


def _measure_text(patterns: tuple[str, ...]) -> dict[str, int]:
    command = ["git", "ls-files", "--", *patterns]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    texts = [(REPOSITORY / name).read_text() for name in listed.stdout.splitlines()]
    lines = [line for text in texts for line in text.splitlines()]
    words = sum(len(text.split()) for text in texts)
    return {"files": len(texts), "words": words, "longest_line": max(map(len, lines))}


def _name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def _count(paths: set[Path], folder: Path) -> int:
    return sum(folder in path.parents for path in paths)


def render(house: House, before: House) -> str:
    """Returns tables for people; what differs from before is OLD > NEW."""
    both = _compare(_tabular(before), _tabular(house))
    tables = [_table(both[title], title) for title in ("groups", "full_folders", "documents")]
    return "\n\n".join([*tables, f"make test: {both['make_test']}"])


def _tabular(house: House) -> House:
    return house | {
        "full_folders": {name: {"files": n} for name, n in house["full_folders"].items()}
    }


def _compare(old: Any, new: Any) -> Any:
    if isinstance(new, dict) or isinstance(old, dict):
        old, new = old or {}, new or {}
        return {key: _compare(old.get(key), new.get(key)) for key in old | new}
    return new if old == new else f"{old} > {new}"


def _table(rows: House, title: str) -> str:
    header = [title, *dict.fromkeys(column for row in rows.values() for column in row)]
    return format_table(
        header, [[name, *(str(row[column]) for column in header[1:])] for name, row in rows.items()]
    )


def main() -> None:
    """Prints the figures of this checkout."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="everything, with names of files")
    parser.add_argument("--no-request", action="store_true", help="trace no request: a few seconds")
    parser.add_argument("--before", type=Path, metavar="FILE", help="JSON to compare with")
    options = parser.parse_args()
    house = measure(with_request=not options.no_request)
    before = json.loads(options.before.read_text()) if options.before else house
    text = json.dumps(house, indent=1) if options.json else render(house, before)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
