"""Where what a journal tells differs from what a replay brings."""

from itertools import zip_longest

from optimist_scheduler.journal.journal_line import PLAN_COLUMNS, read_column

Found = tuple[str, object, object]
"""Path, what was expected, what was got."""

_COLUMNS = {*PLAN_COLUMNS, "cached_blocks"}


def find_difference(expected: object, got: object, path: str = "") -> Found | None:
    """Returns the first value that differs, by its path; None if all are equal.

    Of a column, that is the first row.
    """
    if expected == got:
        return None
    if isinstance(expected, dict) and isinstance(got, dict):
        names = [*expected, *(name for name in got if name not in expected)]
        pairs: list[Found] = [(str(name), expected.get(name), got.get(name)) for name in names]
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        pairs = [(str(row), *both) for row, both in enumerate(zip(expected, got, strict=True))]
    elif path.rpartition(".")[2] in _COLUMNS:
        return _find_row(str(expected), str(got), path)
    else:
        return path, expected, got
    for name, left, right in pairs:
        if found := find_difference(left, right, f"{path}.{name}" if path else name):
            return found
    return path, expected, got


def _find_row(expected: str, got: str, path: str) -> Found:
    try:
        rows = zip_longest(read_column(expected).tolist(), read_column(got).tolist())
    except ValueError:
        return path, expected, got
    pairs = [(f"{path}[{row}]", *both) for row, both in enumerate(rows) if both[0] != both[1]]
    return pairs[0] if pairs else (path, expected, got)
