"""Writes pip's settings on this machine to a file, and prints the mounts that give them to a build.

They hold for the build alone: what is mounted is not in the image.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit


def main() -> None:
    """Takes the file to write."""
    (_, target) = sys.argv
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings = dict(_setting(line) for line in listed.splitlines())
    # What that file says is in the list.
    settings.pop("config-file", None)
    lines = [f"{name} = {' '.join(value.split())}" for name, value in settings.items()]
    Path(target).write_text("\n".join(["[global]", *lines, ""]))
    print(f"--volume={target}:/etc/pip.conf:ro")
    for path in sorted(_paths(settings.values())):
        print(f"--volume={path}:{path}:ro")


def _setting(line: str) -> tuple[str, str]:
    """Returns the name and value of a line such as `:env:.cert='/ca.crt'`."""
    name, _, value = line.partition("=")
    return name.rpartition(".")[2], str(ast.literal_eval(value))


def _paths(values: Iterable[str]) -> set[str]:
    """Returns what the values name on this machine's disk; the files of an index lie beside it."""
    urls = [urlsplit(word) for value in values for word in value.split()]
    indices = {Path(url.path).parent for url in urls if url.scheme == "file"}
    files = {Path(url.path) for url in urls if not url.scheme and url.path.startswith("/")}
    return {str(path) for path in indices | files if path.exists()}


if __name__ == "__main__":
    main()
