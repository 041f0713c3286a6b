"""How much a message of protocol buffers holds, found before any of it becomes an object."""

from typing import Any

from optimist_gateway.core.json_text import HEAVY

_CONTINUED = bytes(range(0x80, 0x100))
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def is_heavier_message(data: bytes, descriptor: Any, most: int) -> bool:
    """Returns whether a message of a type weighs more than `most`; looks no further than that.

    Each number of a list weighs one, each field `json_text.HEAVY`. Raises ValueError if it is no
    message. The type has no messages of its own kind in it.
    """
    weight, waiting = 0, [(data, descriptor)]
    while waiting:
        part, kind = waiting.pop()
        position = 0
        while position < len(part):
            weight += HEAVY
            tag, position = _varint(part, position)
            field = None if kind is None else kind.fields_by_number.get(tag >> 3)
            start, position = _value(part, position, tag & 7)
            if position > len(part):
                raise ValueError("a field is longer than its message")
            if field is not None and tag & 7 == _BYTES:
                if field.message_type is not None:
                    waiting.append((part[start:position], field.message_type))
                elif field.is_repeated and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                    weight += len(part[start:position].translate(None, _CONTINUED))
            if weight > most:
                return True
    return False


def _value(data: bytes, position: int, kind: int) -> tuple[int, int]:
    """Returns where the value of a field begins and ends."""
    if kind == _VARINT:
        return position, _varint(data, position)[1]
    if kind == _BYTES:
        length, position = _varint(data, position)
        return position, position + length
    if kind in (_FIXED_32, _FIXED_64):
        return position, position + (4 if kind == _FIXED_32 else 8)
    raise ValueError("a field has an unknown form")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is broken off")
