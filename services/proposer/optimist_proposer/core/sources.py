"""Sources as one value in a store, named by owner and content, and as followers search them."""

import struct
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from optimist_aligner.algorithm import Reference
from optimist_aligner.text.lines import split_texts
from optimist_aligner.text.sources import INT32, Sources

_FORMAT = 1
# Format, then the number of tokens of predictions, with their separators; all tokens follow.
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
    token_ids = array(INT32, data[_HEADER.size :])
    predictions = list(split_texts(token_ids))
    prompt = None
    if num_predicted < len(token_ids):
        prompt = predictions.pop()
    return Sources(predictions, prompt)


def name_sources(tenant: str, value: bytes) -> SourceName:
    """Returns the name of packed sources of a tenant."""
    return SourceName(
        blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=TENANT_BYTES).digest(),
        blake2b(value, digest_size=CONTENT_BYTES).digest(),
    )


@dataclass(slots=True)
class Prepared:
    """Sources with their name and reference."""

    name: SourceName
    sources: Sources
    reference: Reference
    refreshed_at: float = float("-inf")
    """When the store was last known to hold them, in seconds of a steady clock."""

    @property
    def num_bytes(self) -> int:
        """Memory they take, in bytes, roughly."""
        return 1024 + 8 * len(self.sources.token_ids) + self.reference.num_bytes
