"""The services that this process has started, and what they take of processors."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def find_children(modules: Collection[str]) -> dict[str, int]:
    """Returns the process ids of children, by the module that each runs (`python -m MODULE`).

    Raises:
        LookupError: One is not there.
    """
    found = dict(_children())
    if missing := [module for module in modules if module not in found]:
        raise LookupError(f"there is no process of {', '.join(missing)}")
    return {module: found[module] for module in modules}


def _children() -> Iterator[tuple[str, int]]:
    """Iterates over module and process id of the children that run one."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(_fields(path)[1])
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            # It has ended meanwhile.
            continue
        if parent == os.getpid() and words[1:2] == [b"-m"]:
            yield words[2].decode(), int(path.parent.name)


def read_cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process so far, to a hundredth of a second."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read_machine_seconds() -> tuple[float, float]:
    """Returns how long processors worked since the start, and how long a host kept them from it."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, stolen = (
        int(word) / _TICKS for word in words
    )
    return user + nice + system + irq + softirq, stolen


def find_stolen_share(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Returns how much of the processor time that was asked for a virtual machine's host took.

    Args:
        before: What `read_machine_seconds` returned at the beginning.
        after: What it returned at the end.
    """
    worked, stolen = after[0] - before[0], after[1] - before[1]
    return stolen / (worked + stolen) if stolen else 0.0


def _fields(path: Path) -> list[str]:
    """Returns the fields of a stat file after the command, which may hold anything."""
    return path.read_text().rsplit(")", 1)[1].split()
