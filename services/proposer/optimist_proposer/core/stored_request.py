"""What a store keeps of a request, what to write of it next, and what the store's answer means."""

import struct
from dataclasses import dataclass
from enum import Enum, auto

from optimist_proposer.core.live_requests import NOT_OPENED, LiveRequest
from optimist_proposer.core.output_log import MAX_BYTES_PER_TOKEN, encode_output
from optimist_proposer.core.sources import CONTENT_BYTES, TENANT_BYTES, SourceName
from optimist_proposer.core.wrong_value import WrongKind, WrongValueError

_FORMAT = 1
GENERATION_BYTES = 8
_HEADER = struct.Struct(f"<B{GENERATION_BYTES}sI{TENANT_BYTES}s{CONTENT_BYTES}s")
_NUMBER = struct.Struct("<I")

OPENING_BYTES = 1 + GENERATION_BYTES
"""Bytes at the head of a stored request that differ if its format or its opening does."""
NUMBER_BYTES = _NUMBER.size
"""Bytes after these, which hold the number of known tokens."""
CLOSED = bytes(OPENING_BYTES + NUMBER_BYTES)
"""Stands for a while for a request that was closed, so that a late write finds it."""
UNKNOWN = -1
"""Answer of a store that holds nothing of the request."""
OTHER_OPENING = -2
"""Answer of a store that holds another opening of it, or that it was closed."""
WRONG = -3
"""Answer of a store that holds what is no request; it may be replaced as if it held nothing."""
REFUSED = -4
"""Answer of a store that could not do this write, and has said why; it may do others."""
MAX_STORED_TOKENS = 131_072
"""A longer output is not read: the scheduler sends it again, and nobody waits for its decoding."""


def stored_bytes(num_known: int) -> int:
    """Returns the most bytes of a stored request with so many tokens."""
    return _HEADER.size + MAX_BYTES_PER_TOKEN * num_known


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request as it is in a store; packed it takes 37 bytes and its log."""

    generation: bytes
    """Names one opening of the request [GENERATION_BYTES]."""
    num_known: int
    """Output tokens in the log."""
    source_name: SourceName
    log: bytes
    """The output, as `encode_output` writes it."""

    def pack(self) -> bytes:
        """Encodes it."""
        head = _HEADER.pack(_FORMAT, self.generation, self.num_known, *self.source_name)
        return head + self.log

    @classmethod
    def unpack(cls, data: bytes, max_tokens: int) -> "StoredRequest":
        """Decodes what `pack` wrote.

        Args:
            data: The value.
            max_tokens: Output tokens that the request can have by now.

        Raises:
            WrongValueError: It was another format, or has more tokens, or a log that is too long.
        """
        if len(data) < _HEADER.size:
            raise WrongValueError(WrongKind.FORMAT, "not a packed request")
        form, generation, num_known, tenant, content = _HEADER.unpack_from(data)
        if form != _FORMAT:
            raise WrongValueError(
                WrongKind.FORMAT, f"packed request has format {form}, not {_FORMAT}"
            )
        if num_known > max_tokens:
            raise WrongValueError(
                WrongKind.SIZE, f"a request has {num_known} output tokens, more than {max_tokens}"
            )
        if len(data) > stored_bytes(num_known):
            raise WrongValueError(
                WrongKind.SIZE, f"{len(data)} bytes are no log of {num_known} output tokens"
            )
        return cls(generation, num_known, SourceName(tenant, content), data[_HEADER.size :])


def pack_opening(generation: bytes) -> bytes:
    """Returns the head of what is stored of one opening [OPENING_BYTES]."""
    return bytes([_FORMAT]) + generation


def pack_number(number: int) -> bytes:
    """Encodes a number of tokens as it is stored [NUMBER_BYTES]."""
    return _NUMBER.pack(number)


class WriteKind(Enum):
    """What becomes of what the store holds."""

    OPEN = auto()
    """It is replaced, whatever it is."""
    CREATE = auto()
    """The whole request is set if the store holds nothing of it."""
    APPEND = auto()
    """Runs are appended if the opening and the number of known tokens are as expected."""


@dataclass(frozen=True, slots=True)
class LogWrite:
    """One write; the store answers how many tokens it knows then, or a number below 0."""

    request: LiveRequest
    kind: WriteKind
    num_before: int
    """Known tokens expected in the store."""
    num_after: int
    """Known tokens if it is done."""
    data: bytes
    """The packed request, or the runs to append."""


class Settled(Enum):
    """What is left to do for a request after a write."""

    DONE = auto()
    AGAIN = auto()
    """The store knows another number of tokens; the next write starts there."""
    CREATE = auto()
    """The store lost the request."""
    SUPERSEDED = auto()
    """The working copy is of no use: the request was opened again elsewhere, or closed."""
    REFUSED = auto()
    """It is not written now; what comes next is tried again with it."""


def next_write(request: LiveRequest, *, is_lost: bool = False) -> LogWrite | None:
    """Returns the write that brings the store up to the working copy; None if it is.

    Args:
        request: The working copy.
        is_lost: Whether the store holds nothing of it, as it answered.
    """
    sources, output, num_known = request.prepared.sources, request.output, request.num_known
    if request.num_logged == NOT_OPENED or is_lost:
        log, request.copy_hint = encode_output(sources, 0, output, 0)
        stored = StoredRequest(request.generation, num_known, request.prepared.name, log)
        kind = WriteKind.CREATE if is_lost else WriteKind.OPEN
        return LogWrite(request, kind, request.num_logged, num_known, stored.pack())
    if request.num_logged >= num_known:
        return None
    new = output[request.num_logged :]
    runs, request.copy_hint = encode_output(sources, request.num_logged, new, request.copy_hint)
    return LogWrite(request, WriteKind.APPEND, request.num_logged, num_known, runs)


def settle_write(write: LogWrite, answer: int) -> Settled:
    """Notes what the store knows; returns what is left to do."""
    if answer in (UNKNOWN, WRONG):
        return Settled.CREATE
    if answer == REFUSED:
        return Settled.REFUSED
    if answer == OTHER_OPENING:
        return Settled.SUPERSEDED
    write.request.num_logged = answer
    return Settled.AGAIN if answer < write.num_after else Settled.DONE
