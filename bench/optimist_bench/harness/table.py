"""What a benchmark prints for people: columns of text."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns lines with columns of equal width; numbers to the right, floats to 3 places."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [isinstance(value, int | float) for value in rows[0]] if rows else []
    lines = []
    for row in cells:
        padded = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(
                row, widths, numeric or [False] * len(row), strict=True
            )
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
