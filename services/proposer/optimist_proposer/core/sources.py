"""Sources as one value in a store, named by owner and content, and as followers search them."""

import struct
from array import array
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from optimist_aligner.algorithm import Reference
from optimist_aligner.text.lines import split_texts
from optimist_aligner.text.sources import INT32, SEPARATOR, Sources

_FORMAT = 1
# Format, then the number of tokens of predictions, with their separators; all tokens follow.
_HEADER = struct.Struct("<BI")
TENANT_BYTES = 8
CONTENT_BYTES = 16


class WrongKind(StrEnum):
    """What is wrong with a value; for counting."""

    TYPE = "type"
    """It is a list, say, and no string."""
    FORMAT = "format"
    """It is not built as such a value is."""
    SIZE = "size"
    """It, or what it stands for, is larger than it may be."""
    DIGEST = "digest"
    """Its content is not the one that it is named by."""
    LIMIT = "limit"
    """The proposer would refuse it if a scheduler sent it."""
    TOKEN = "token"  # noqa: S105
    """It has tokens that the vocabulary lacks."""
    OUTPUT = "output"
    """It is another output than the one that is known here."""


class WrongValueError(ValueError):
    """A value of the store that none of ours has written, or that exceeds the limits here.

    It is not used; the message says what is wrong with it.
    """

    def __init__(self, kind: WrongKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SourceName(NamedTuple):
    """Tells sources apart: equal ones of one tenant have one name, those of two tenants never."""

    tenant: bytes
    """Digest of the tenant."""
    content: bytes
    """Digest of the texts."""


def pack_sources(sources: Sources) -> bytes:
    """Encodes sources, to be read by `unpack_sources` in this or another process."""
    return _HEADER.pack(_FORMAT, sources.num_predicted) + sources.token_ids.tobytes()


def packed_bytes(num_tokens: int) -> int:
    """Returns the size of packed sources with so many tokens, separators included."""
    return _HEADER.size + num_tokens * array(INT32).itemsize


def unpack_sources(
    name: SourceName, data: bytes, max_texts: int
) -> tuple["list[array[int]]", "array[int]"]:
    """Decodes what `pack_sources` wrote.

    Args:
        name: How they are named, by their content too.
        data: The value.
        max_texts: Most predictions; the prompt is one more text.

    Returns:
        The predictions, and the prompt, which may be empty. Their tokens may be in no vocabulary.

    Raises:
        WrongValueError: It is another content, or none.
    """
    if _digest(data) != name.content:
        raise WrongValueError(WrongKind.DIGEST, "sources are not those that they are named by")
    if len(data) < _HEADER.size or (len(data) - _HEADER.size) % array(INT32).itemsize:
        raise WrongValueError(WrongKind.FORMAT, "not packed sources")
    form, num_predicted = _HEADER.unpack_from(data)
    if form != _FORMAT:
        raise WrongValueError(WrongKind.FORMAT, f"packed sources have format {form}, not {_FORMAT}")
    token_ids = array(INT32, data[_HEADER.size :])
    if np.count_nonzero(np.frombuffer(token_ids, np.intc) == SEPARATOR) > max_texts + 1:
        raise WrongValueError(WrongKind.LIMIT, f"sources have more than {max_texts} predictions")
    try:
        predictions = list(split_texts(token_ids))
    except ValueError as error:
        raise WrongValueError(WrongKind.FORMAT, str(error)) from None
    prompt = predictions.pop() if num_predicted < len(token_ids) else array(INT32)
    if num_predicted != sum(map(len, predictions)) + len(predictions):
        raise WrongValueError(WrongKind.FORMAT, "packed sources count other predictions")
    return predictions, prompt


def name_sources(tenant: str, value: bytes) -> SourceName:
    """Returns the name of packed sources of a tenant."""
    return SourceName(
        blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=TENANT_BYTES).digest(),
        _digest(value),
    )


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=CONTENT_BYTES).digest()


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
