"""What a store keeps of a request, what to write of it next, and what the store's answer means."""

import struct
from array import array
from dataclasses import dataclass
from enum import Enum, auto

from optimist_aligner.text.sources import INT32
from optimist_proposer.core.live_requests import NOT_OPENED, LiveRequest
from optimist_proposer.core.sources import (
    CONTENT_BYTES,
    TENANT_BYTES,
    SourceName,
    WrongKind,
    WrongValueError,
)

_FORMAT = 2
GENERATION_BYTES = 8
_HEADER = struct.Struct(f"<B{GENERATION_BYTES}sI{TENANT_BYTES}s{CONTENT_BYTES}s")
_NUMBER = struct.Struct("<I")

OPENING_BYTES = 1 + GENERATION_BYTES
"""Bytes at the head of a stored request that differ if its format or its opening does."""
NUMBER_BYTES = _NUMBER.size
"""Bytes after these, which hold the number of known tokens."""
TOKEN_BYTES = array(INT32).itemsize
"""Bytes of each output token, which follow the header."""
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
"""A longer output is not read: the scheduler sends it again."""


def stored_bytes(num_known: int) -> int:
    """Returns the bytes of a stored request with so many tokens."""
    return _HEADER.size + TOKEN_BYTES * num_known


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request as it is in a store; packed it takes 37 bytes and 4 for each output token."""

    generation: bytes
    """Names one opening of the request [GENERATION_BYTES]."""
    source_name: SourceName
    output: "array[int]"
    """Output tokens [num_known]."""

    def pack(self) -> bytes:
        """Encodes it."""
        head = _HEADER.pack(_FORMAT, self.generation, len(self.output), *self.source_name)
        return head + self.output.tobytes()

    @classmethod
    def unpack(cls, data: bytes, max_tokens: int) -> "StoredRequest":
        """Decodes what `pack` wrote.

        Args:
            data: The value.
            max_tokens: Output tokens that the request can have by now.

        Raises:
            WrongValueError: It was another format, or has more tokens, or another length.
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
        if len(data) != stored_bytes(num_known):
            raise WrongValueError(
                WrongKind.SIZE, f"{len(data)} bytes are not {num_known} output tokens"
            )
        output = array(INT32, data[_HEADER.size :])
        return cls(generation, SourceName(tenant, content), output)


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
    """Tokens are appended if the opening and the number of known tokens are as expected."""


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
    """The packed request, or the tokens to append."""


def next_write(request: LiveRequest, *, is_lost: bool = False) -> LogWrite | None:
    """Returns the write that brings the store up to the working copy; None if it is.

    Args:
        request: The working copy.
        is_lost: Whether the store holds nothing of it, as it answered.
    """
    num_known = request.num_known
    if request.num_logged == NOT_OPENED or is_lost:
        stored = StoredRequest(request.generation, request.prepared.name, request.output)
        kind = WriteKind.CREATE if is_lost else WriteKind.OPEN
        return LogWrite(request, kind, request.num_logged, num_known, stored.pack())
    if request.num_logged >= num_known:
        return None
    new = request.output[request.num_logged :].tobytes()
    return LogWrite(request, WriteKind.APPEND, request.num_logged, num_known, new)


def settle_write(write: LogWrite, answer: int) -> LogWrite | None:
    """Notes what the store knows after a write; returns what is to be written next, if anything."""
    if answer in (OTHER_OPENING, REFUSED):
        return None
    if answer in (UNKNOWN, WRONG):
        return next_write(write.request, is_lost=True)
    write.request.num_logged = answer
    # The store may have known another number of tokens; the next write starts there.
    return next_write(write.request) if answer < write.num_after else None
