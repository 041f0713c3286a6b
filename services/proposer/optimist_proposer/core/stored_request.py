"""What a store keeps of a request: which opening of it, which sources, and its output."""

import struct
from dataclasses import dataclass

from optimist_proposer.core.source_value import CONTENT_BYTES, TENANT_BYTES, SourceName

_FORMAT = 1
GENERATION_BYTES = 8
_HEADER = struct.Struct(f"<B{GENERATION_BYTES}sI{TENANT_BYTES}s{CONTENT_BYTES}s")
_NUMBER = struct.Struct("<I")

OPENING_BYTES = 1 + GENERATION_BYTES
"""Bytes at the head of a stored request that differ if its format or its opening does."""
NUMBER_BYTES = _NUMBER.size
"""Bytes behind these, which hold the number of known tokens."""
CLOSED = bytes(OPENING_BYTES + NUMBER_BYTES)
"""Stands for a while in the place of a request that was closed, so that a late write finds it."""


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
    def unpack(cls, data: bytes) -> "StoredRequest":
        """Decodes what `pack` wrote; raises ValueError if it was another format."""
        if len(data) < _HEADER.size:
            raise ValueError("not a packed request")
        form, generation, num_known, tenant, content = _HEADER.unpack_from(data)
        if form != _FORMAT:
            raise ValueError(f"packed request has format {form}, not {_FORMAT}")
        return cls(generation, num_known, SourceName(tenant, content), data[_HEADER.size :])


def pack_opening(generation: bytes) -> bytes:
    """Returns the head of what is stored of one opening [OPENING_BYTES]."""
    return bytes([_FORMAT]) + generation


def pack_number(number: int) -> bytes:
    """Encodes a number of tokens as it is stored [NUMBER_BYTES]."""
    return _NUMBER.pack(number)
