"""The file that a scheduler's calls are logged to, for `optimist replay`."""

import logging
import os
from pathlib import Path
from typing import BinaryIO

from optimist_common.errors import SetupError
from optimist_scheduler.journal.journal_line import Json, write_line

logger = logging.getLogger(__name__)

FULL: Json = {"call": "full"}
"""The last line of a log that has reached its bound."""

_MIB = 1024 * 1024


class Journal:
    """Lines of JSON in a file, up to a bound; what cannot be written ends the log, nothing else."""

    def __init__(self, path: str, max_mib: int) -> None:
        """Opens a file; what it holds from earlier runs stays, and counts.

        Raises:
            SetupError: The file cannot be written.
        """
        self._path = path
        self._max_bytes = max_mib * _MIB
        try:
            file = Path(path).open("a+b")  # noqa: SIM115
        except OSError as error:
            raise SetupError(
                f"--replay-log: cannot write {path}: {error.strerror}; choose another file"
            ) from None
        self._num_bytes = file.seek(0, os.SEEK_END)
        if self._num_bytes:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # The last run ended in the middle of a line.
                file.write(b"\n")
        self._file: BinaryIO | None = file

    @property
    def is_open(self) -> bool:
        """Whether lines are still written."""
        return self._file is not None

    def write(self, values: Json, *, flush: bool = False) -> None:
        """Writes a line; at the first that does not fit or fails the log ends, with a warning.

        Args:
            values: The line.
            flush: Whether the line is to outlive the process from now on.
        """
        if self._file is None:
            return
        line = _encode(values)
        is_full = self._num_bytes + len(line) > self._max_bytes
        try:
            self._num_bytes += self._file.write(_encode(FULL) if is_full else line)
            if flush:
                self._file.flush()
        except OSError as error:
            self._stop(str(error.strerror))
        if is_full:
            self._stop(f"it has {self._max_bytes // _MIB} MiB (--replay-log-mib)")

    def close(self) -> None:
        """Writes what is buffered and ends the log."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            logger.warning("the end of the replay log %s is lost: %s", self._path, error.strerror)

    def _stop(self, reason: str) -> None:
        if self._file is None:
            return
        logger.warning("the replay log %s ends here: %s", self._path, reason)
        self.close()


def _encode(values: Json) -> bytes:
    return write_line(values).encode() + b"\n"
