"""The journal of a scheduler: what happened to it, in a file for `optimist replay`."""

import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from typing import Any, BinaryIO, ParamSpec, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from optimist.scheduler.v1 import journal_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.errors import SetupError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FORMAT = 11
"""Version of the entries; a journal of another one is not replayed."""
MAX_ENTRY_BYTES = 256 * 1024 * 1024
"""What says that it is larger is no entry."""

_MIB = 1024 * 1024
_SIZE = struct.Struct("<I")
_FULL = journal_pb2.JournalEntry(full=journal_pb2.JournalFull())


class Journal:
    """Entries in a file, up to a bound; what cannot be written ends the journal, nothing else."""

    def __init__(self, path: str = "", max_mib: int = 0) -> None:
        """Opens a file; what it holds from earlier processes stays, and counts.

        It has the prompts: a new one is for this user alone (0600), an older one keeps its mode.

        Raises:
            SetupError: The file cannot be written, or is no journal.
        """
        self._path, self._max_bytes = path, max_mib * _MIB
        self._file: BinaryIO | None = None
        self._num_bytes = 0
        if path:
            try:
                self._file = open(path, "a+b", opener=_open_private)  # noqa: SIM115
                self._num_bytes = _cut(self._file)
            except (OSError, ValueError) as error:
                self.close()
                reason = error.strerror if isinstance(error, OSError) else "it is something else"
                raise SetupError(
                    f"--replay-log: cannot write {path}: {reason}; choose another file"
                ) from None

    def begin(self, settings: str) -> None:
        """Writes the entry of a process that starts; `settings` are those it decides by."""
        start = journal_pb2.JournalStart(format=FORMAT, settings=settings)
        self.write(journal_pb2.JournalEntry(start=start))

    @property
    def is_on(self) -> bool:
        """Whether anything is written."""
        return self._file is not None

    def record(self, call: Callable[[], T], **event: Any) -> T:
        """Makes a call and writes an entry of it, also if it raises.

        The plan that `call` returns is written, of all else a checksum.
        """
        try:
            value = call()
        except Exception as error:
            self.write(journal_pb2.JournalEntry(**event, outcome=checksum(error)), flush=True)
            raise
        if isinstance(value, worker_pb2.ExecuteRequest):
            # The worker has it soon: from then on the entry is to outlive the process.
            self.write(journal_pb2.JournalEntry(**event, plan=value), flush=True)
        else:
            self.write(journal_pb2.JournalEntry(**event, outcome=checksum(value)))
        return value

    def write(self, entry: journal_pb2.JournalEntry, *, flush: bool = False) -> None:
        """Writes an entry; at the first that does not fit or fails the journal ends.

        With `flush` it outlives the process from now on.
        """
        if self._file is None:
            return
        data = entry.SerializeToString()
        is_full = self._num_bytes + _SIZE.size + len(data) > self._max_bytes
        if is_full:
            data = _FULL.SerializeToString()
        try:
            self._num_bytes += self._file.write(_SIZE.pack(len(data)) + data)
            if flush:
                self._file.flush()
        except OSError as error:
            self._stop(str(error.strerror))
        if is_full:
            self._stop(f"it has {self._max_bytes // _MIB} MiB (--replay-log-mib)")

    def close(self) -> None:
        """Writes what is buffered and ends the journal."""
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


OFF = Journal()
"""Records nothing."""


def recorded(
    find_fields: Callable[..., dict[str, Any]],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Has a method write an entry of each call to its object's journal.

    `find_fields` takes the same arguments, and returns the entry's fields.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call(*arguments: P.args, **others: P.kwargs) -> T:
            journal: Journal = arguments[0]._journal  # type: ignore[attr-defined]
            if not journal.is_on:
                return method(*arguments, **others)
            fields = find_fields(*arguments, **others)
            return journal.record(partial(method, *arguments, **others), **fields)

        return call

    return decorate


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _cut(file: BinaryIO) -> int:
    """Removes a last entry that was cut off; returns the size, raises ValueError for no journal."""
    size, end = file.seek(0, os.SEEK_END), 0
    if size == 0:
        return 0
    file.seek(0)
    for entry in read_entries(file):
        if end == 0 and (entry is None or not entry.HasField("start")):
            raise ValueError("no entry of a start")
        if entry is not None:
            end = file.tell()
    if end < size:
        file.truncate(end)
    return end


def read_entries(file: BinaryIO) -> Iterator[journal_pb2.JournalEntry | None]:
    """Iterates over entries, None for a last one that is cut off; raises ValueError for others."""
    while header := file.read(_SIZE.size):
        size = _SIZE.unpack(header)[0] if len(header) == _SIZE.size else 0
        if size > MAX_ENTRY_BYTES:
            raise ValueError(f"an entry cannot have {size} bytes")
        data = file.read(size)
        if len(header) < _SIZE.size or len(data) < size:
            yield None
            return
        try:
            yield journal_pb2.JournalEntry.FromString(data)
        except DecodeError:
            raise ValueError("it cannot be decoded") from None


def checksum(value: object) -> int:
    """Returns a checksum of what a call returned or raised."""
    total = 0
    for part in _parts(value):
        total = zlib.crc32(part, total)
    return total


def _parts(value: object) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, list | tuple):
        yield len(value).to_bytes(8, "little")
        for each in value:
            yield from _parts(each)
    elif is_dataclass(value):
        for field in fields(value):
            # What is computed from the others.
            if not field.name.startswith("_"):
                yield from _parts(getattr(value, field.name))
    else:
        yield repr(value).encode()
