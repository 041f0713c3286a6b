"""Notes which functions of a service run, if HOUSE_TRACE names a directory.

Python imports this module in each process whose PYTHONPATH has its folder. A file `idle` in the
directory begins a window without requests, `request` one with a request, and `end` ends that; then
each process writes PID.json: for each window a list of [file, function, first line, calls].
"""

import inspect
import json
import os
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType


def trace(directory: Path) -> None:
    """Traces all threads of this process from now on."""
    # By identity, since equality of code compares its contents.
    found: dict[int, tuple[CodeType, str]] = {}
    calls: Counter[int] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # Bodies of modules and classes run at imports only. The methods of a dataclass are in no
        # file, but their globals are those of its module.
        if code.co_flags & inspect.CO_OPTIMIZED:
            if id(code) not in found:
                found[id(code)] = code, frame.f_globals.get("__file__") or ""
            calls[id(code)] += 1

    def watch() -> None:
        windows: dict[str, list[tuple[str, str, int, int]]] = {}
        for begin, end in pairwise(("idle", "request", "end")):
            _wait_for(directory / begin)
            calls.clear()
            _wait_for(directory / end)
            windows[begin] = [
                (file, code.co_qualname, code.co_firstlineno, count)
                for each, count in list(calls.items())
                for code, file in [found[each]]
                if "/optimist_" in file
            ]
        unfinished = directory / f"{os.getpid()}.unfinished"
        unfinished.write_text(json.dumps(windows))
        unfinished.rename(unfinished.with_suffix(".json"))

    threading.Thread(target=watch, daemon=True).start()
    threading.settrace(note)
    sys.settrace(note)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


if "HOUSE_TRACE" in os.environ:
    trace(Path(os.environ["HOUSE_TRACE"]))
