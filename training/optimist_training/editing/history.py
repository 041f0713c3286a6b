"""Versions of files in the history of repositories, from bare or checked out clones."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optimist_common.errors import SetupError

_LEFT_OUT = re.compile(r"(^|/)(vendor|node_modules|dist|build|\.git)/|\.min\.|lock\b|\.snap$")
_MOST_CHARACTERS = 60_000
_MOST_IN_A_LINE = 200


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit did to one file."""

    source: str
    """Name of the repository and the commit."""
    path: str
    before: str
    after: str


class Repository:
    """A git repository that is only read."""

    def __init__(self, directory: Path) -> None:
        """Opens it.

        Args:
            directory: Of the clone, bare or not.

        Raises:
            SetupError: It is no repository.
        """
        self._directory = directory
        self.name = directory.resolve().name.removesuffix(".git")
        self._git("rev-parse", "--git-dir")

    def files(self, endings: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yields path and text of the files of the newest commit, in order of their paths."""
        for path in self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines():
            if path.endswith(endings) and not _LEFT_OUT.search(path):
                text = self._text(f"HEAD:{path}")
                if text is not None:
                    yield path, text

    def changes(self, endings: tuple[str, ...], count: int) -> Iterator[Change]:
        """Yields what commits did to files that they had before, the newest first.

        Args:
            endings: Of the files.
            count: How many commits to look at.
        """
        log = self._git(
            "log", "--no-merges", f"-{count}", "--diff-filter=M", "--raw", "--no-abbrev",
            "--no-renames", "--format=%H",
        )  # fmt: skip
        commit = ""
        for line in log.splitlines():
            if not line.startswith(":"):
                commit = line or commit
                continue
            blobs, _, path = line.partition("\t")
            if not path.endswith(endings) or _LEFT_OUT.search(path):
                continue
            before, after = (self._text(blob) for blob in blobs.split()[2:4])
            if before is not None and after is not None:
                yield Change(f"{self.name}@{commit}", path, before, after)

    def _text(self, name: str) -> str | None:
        """Returns a text that a model could be shown, or None."""
        try:
            text = self._git("cat-file", "blob", name)
        except UnicodeDecodeError:
            return None
        is_usual = text.isascii() and "\r" not in text and 0 < len(text) <= _MOST_CHARACTERS
        if not is_usual or max(map(len, text.split("\n"))) > _MOST_IN_A_LINE:
            return None
        return text

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._directory), *arguments]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise SetupError(f"{self._directory}: {reason}")
        return done.stdout.decode()
