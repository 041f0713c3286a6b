"""When a stage computed which pass, for measurements."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from optimist_common.errors import SetupError


class StageTrace:
    """Writes a line per pass, if it is wanted: `{"pass": 1, "begin_ns": ..., "end_ns": ...}`.

    Times are of the machine's monotonic clock, which all processes of a machine share. On CUDA they
    are the host's, which does not wait for the device.
    """

    def __init__(self, directory: str, stage: int) -> None:
        """Opens `stage-N.jsonl`; an empty name of the directory writes nothing.

        Raises:
            SetupError: It cannot be written.
        """
        self._file: TextIO | None = None
        if not directory:
            return
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            path = Path(directory) / f"stage-{stage}.jsonl"
            self._file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise SetupError(f"--stage-trace: cannot write {directory}: {error.strerror}") from None

    @contextmanager
    def note(self, number: int) -> Iterator[None]:
        """Notes when a pass begins and ends."""
        if self._file is None:
            yield
            return
        begin = time.monotonic_ns()
        yield
        line = {"pass": number, "begin_ns": begin, "end_ns": time.monotonic_ns()}
        self._file.write(json.dumps(line) + "\n")
