"""The traceparent of W3C Trace Context (level 1): which span of which trace asks for something."""

import re
from typing import NamedTuple

_PATTERN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class TraceParent(NamedTuple):
    """A span as its children are told of it."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}"


def parse_trace_parent(text: str) -> TraceParent | None:
    """Reads a traceparent; None for what is none, which the standard wants to be ignored."""
    match = _PATTERN.fullmatch(text.strip()) if len(text) <= 256 else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if (
        version == "ff"
        or (version == "00" and rest)
        or trace_id == _NO_TRACE
        or span_id == _NO_SPAN
    ):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1))
