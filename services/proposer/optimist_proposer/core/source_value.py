"""Sources as one value in a store, named by their owner and content."""

import struct
from array import array
from hashlib import blake2b
from typing import NamedTuple

from optimist_aligner.text.sources import INT32, SEPARATOR, Sources

_FORMAT = 1
# Format, then the number of places that belong to predictions; the places follow.
_HEADER = struct.Struct("<BI")
TENANT_BYTES = 8
CONTENT_BYTES = 16


class SourceName(NamedTuple):
    """Tells sources apart: equal ones of one tenant have one name, those of two tenants never."""

    tenant: bytes
    """Digest of the tenant."""
    content: bytes
    """Digest of the texts."""


def pack_sources(sources: Sources) -> bytes:
    """Encodes sources, to be read by `unpack_sources` in this or another process."""
    return _HEADER.pack(_FORMAT, sources.num_predicted) + sources.token_ids.tobytes()


def unpack_sources(data: bytes) -> Sources:
    """Decodes what `pack_sources` wrote; raises ValueError if it was another format."""
    if len(data) < _HEADER.size or (len(data) - _HEADER.size) % array(INT32).itemsize:
        raise ValueError("not packed sources")
    form, num_predicted = _HEADER.unpack_from(data)
    if form != _FORMAT:
        raise ValueError(f"packed sources have format {form}, not {_FORMAT}")
    places = array(INT32, data[_HEADER.size :])
    texts: list[array[int]] = []
    start = 0
    while start < len(places):
        try:
            end = places.index(SEPARATOR, start)
        except ValueError:
            raise ValueError("a packed source has no end") from None
        texts.append(places[start:end])
        start = end + 1
    predictions = texts
    prompt = None
    if num_predicted < len(places):
        *predictions, prompt = texts
    return Sources(predictions, prompt)


def name_sources(tenant: str, value: bytes) -> SourceName:
    """Returns the name of packed sources of a tenant."""
    return SourceName(
        blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=TENANT_BYTES).digest(),
        blake2b(value, digest_size=CONTENT_BYTES).digest(),
    )
