"""Whole numbers in as few bytes as their size needs: seven bits a byte, the lowest first."""

MAX_BYTES = 5
"""Enough for any token, position or count."""


def put_varint(data: bytearray, value: int) -> None:
    """Appends a number of at least 0."""
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)


def read_varints(data: bytes) -> list[int]:
    """Returns the numbers that `data` holds; raises ValueError if it ends within one."""
    values: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            values.append(value)
            value = shift = 0
            continue
        shift += 7
        if shift >= 7 * MAX_BYTES:
            raise ValueError("a number has too many bytes")
    if shift:
        raise ValueError("the data ends within a number")
    return values


def zigzag(value: int) -> int:
    """Maps whole numbers to those of at least 0, near 0 to small ones."""
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(value: int) -> int:
    """Undoes `zigzag`."""
    return value // 2 if value % 2 == 0 else -(value + 1) // 2
