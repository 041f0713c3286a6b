"""Logs of single requests, a file of JSON lines each, for `optimist explain`."""

import errno
import hashlib
import logging
import os
import re
import socket
import time
from array import array
from collections.abc import Mapping
from pathlib import Path

from optimist_aligner import Draft, Sources, Vocabulary
from optimist_common.request_log.record import RequestRecord, digest, end_record
from optimist_common.settings import home_directory

logger = logging.getLogger(__name__)

CLOSED = end_record("the request was closed")
FULL = end_record("the log is full")
# Room for the end of a log, and for another one after it if the request is opened again.
_RESERVE = 2 * max(len(CLOSED), len(FULL))

# Capitals are left out, because there are file systems that take them for small letters.
_PLAIN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_NOT_PLAIN = re.compile(r"[^a-z0-9._-]+")
_FRONT_BYTES = 16 * 1024
_TAIL_BYTES = 256 * 1024
_STEP = re.compile(rb'^\{"step": (\d{1,18}),', re.MULTILINE)
# Read, too: what is there already says how to go on. No link is followed.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def default_log_directory(environment: Mapping[str, str]) -> Path:
    """Returns `log` in the user's directory of Optimist."""
    return home_directory(environment) / "log"


def log_file_name(request_id: str) -> str:
    """Returns the name of a request's log, another one for every id.

    An id of small letters, digits, dots, dashes and underscores names the file itself. Of another
    one only a part is legible, and `~`, which no such id has, and its hash follow.
    """
    if _PLAIN_ID.fullmatch(request_id):
        return f"{request_id}.jsonl"
    content = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()
    legible = _NOT_PLAIN.sub("_", request_id[:40].lower()).lstrip("._-")
    return f"{legible or 'request'}~{content}.jsonl"


class RequestLogs:
    """Writes what happens to each request.

    A log never harms a request: what cannot be written ends all logging with one warning, until
    the process is started again. A replica appends to the log that another one has begun.
    """

    def __init__(
        self,
        directory: Path,
        vocabulary: Vocabulary,
        max_bytes_per_request: int,
        max_bytes: int,
        replica: str = "",
    ) -> None:
        """Writes nothing yet; the directory is made when the first request is opened.

        Logging ends when the directory has `max_bytes`, as far as this process fills it. Host and
        process say who writes if `replica` is empty.
        """
        self._directory, self._vocabulary = directory, vocabulary
        self._max_bytes = max_bytes_per_request
        self._max_directory_bytes, self._room = max_bytes, -1
        self._replica = replica or f"{socket.gethostname()}:{os.getpid()}"
        self._records: dict[str, RequestRecord] = {}
        self._is_enabled = True

    def __len__(self) -> int:
        return len(self._records)

    def open(self, request_id: str, sources: Sources) -> None:
        """Begins the log of a request, or goes on with the one that there is."""
        if not self._is_enabled:
            return
        self.leave(request_id)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._room < 0:
                used = sum(entry.stat().st_size for entry in os.scandir(self._directory))
                self._room = max(self._max_directory_bytes - used, 0)
            self._begin(request_id, sources)
        except OSError as error:
            self._disable(request_id, error)

    def step(
        self,
        request_id: str,
        token_ids: "array[int]",
        num_known: int,
        draft: Draft | None,
        seconds: float,
        num_alignments: int,
    ) -> None:
        """Writes a step of a request; nothing if its log was not begun.

        There are `num_known` output tokens with the new ones, of which there are none when it is
        opened. How the output is expected to go on is None if no window was sent.
        """
        record = self._records.get(request_id)
        if record is not None:
            content = record.step(token_ids, num_known, draft, seconds, num_alignments)
            self._append(request_id, content)

    def close(self, request_id: str) -> None:
        """Ends the log of a request; nothing if it was not begun."""
        if request_id in self._records:
            self._append(request_id, CLOSED, is_end=True)

    def leave(self, request_id: str) -> None:
        """Writes no more of a request, which may go on elsewhere."""
        self._records.pop(request_id, None)

    def stop(self) -> None:
        """Writes no more; the requests may go on elsewhere."""
        self._records.clear()

    def _begin(self, request_id: str, sources: Sources) -> None:
        file = self._open(request_id)
        try:
            size = os.fstat(file).st_size
            front = os.pread(file, _FRONT_BYTES, 0)
            tail = os.pread(file, _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
        finally:
            os.close(file)
        if tail.endswith(FULL):
            return
        steps = _STEP.findall(tail)
        num_steps = int(steps[-1]) + 1 if steps else 0
        record = RequestRecord(request_id, self._replica, self._vocabulary, num_steps)
        opened = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        is_known = f'"sources": "{digest(sources)}"'.encode() in front
        # Half of the file is left for the steps.
        header = record.header(sources, opened, None if is_known else self._max_bytes // 2)
        self._records[request_id] = record
        # A process that ended while it wrote has left a line without an end.
        is_cut = bool(tail) and not tail.endswith(b"\n")
        self._append(request_id, b"\n" * is_cut + header)

    def _open(self, request_id: str) -> int:
        return os.open(self._directory / log_file_name(request_id), _FLAGS, 0o600)

    def _append(self, request_id: str, content: bytes, *, is_end: bool = False) -> None:
        """Appends a record, or that the log is full, in one call: those of replicas do not mix."""
        try:
            file = self._open(request_id)
            try:
                # Other replicas may have written to the same file.
                if (
                    not is_end
                    and os.fstat(file).st_size + len(content) + _RESERVE > self._max_bytes
                ):
                    content, is_end = FULL, True
                if is_end:
                    self.leave(request_id)
                if len(content) > self._room:
                    raise OSError(errno.EDQUOT, "the directory holds as much as it may")
                if os.write(file, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._room -= len(content)
            finally:
                os.close(file)
        except OSError as error:
            self._disable(request_id, error)

    def _disable(self, request_id: str, error: OSError) -> None:
        self._is_enabled = False
        logger.warning(
            "no request is logged any more, requests go on: cannot write %s: %s",
            self._directory / log_file_name(request_id),
            error.strerror or error,
        )
        self.stop()
