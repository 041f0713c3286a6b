"""Edit snippets: what changes in a file, with elisions for what does not."""

from difflib import SequenceMatcher

from optimist_training.editing.requests import elision

_CONTEXT = 2
"""Lines around a change, at least."""
_MOST_CONTEXT = 6


def snippet_of(before: str, after: str, path: str) -> str | None:
    """Returns a snippet from which `after` follows, given `before`.

    A change stands between lines of the file that occur there only once together; what lies
    between is written "... existing code ..." in a comment of the language.

    Args:
        before: The file.
        after: The file as it is to be.
        path: Of the file, for its language.

    Returns:
        None if nothing changes, or the lines around a change do not say where it is.
    """
    old, new = before.splitlines(), after.splitlines()
    changes = [
        (i1, i2, j1, j2)
        for kind, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if kind != "equal"
    ]
    if not changes:
        return None
    parts: list[tuple[int, int, int, int]] = []
    for i1, i2, j1, j2 in changes:
        above, below = _lines_above(old, i1), _lines_below(old, i2)
        if above is None or below is None:
            return None
        start, end = i1 - above, i2 + below
        if parts and start <= parts[-1][1]:
            first, _, first_new, _ = parts.pop()
            parts.append((first, end, first_new, j2 + below))
        else:
            parts.append((start, end, j1 - above, j2 + below))
    lines: list[str] = []
    position = 0
    for start, end, new_start, new_end in parts:
        if start > position:
            lines.append(_elided(old[position:start], new[new_start:new_end], path))
        lines += new[new_start:new_end]
        position = end
    if position < len(old):
        lines.append(_elided(old[position:], lines[-1:], path))
    return "\n".join(lines)


def _lines_above(lines: list[str], position: int) -> int | None:
    """Returns how many lines before a position say where it is."""
    for count in range(_CONTEXT, _MOST_CONTEXT + 1):
        if count >= position:
            return position
        if _occurrences(lines, lines[position - count : position]) == 1:
            return count
    return None


def _lines_below(lines: list[str], position: int) -> int | None:
    left = len(lines) - position
    for count in range(_CONTEXT, _MOST_CONTEXT + 1):
        if count >= left:
            return left
        if _occurrences(lines, lines[position : position + count]) == 1:
            return count
    return None


def _occurrences(lines: list[str], wanted: list[str]) -> int:
    size = len(wanted)
    return sum(lines[n : n + size] == wanted for n in range(len(lines) - size + 1))


def _elided(left_out: list[str], beside: list[str], path: str) -> str:
    """Returns the elision, indented like the line beside it that has the fewest spaces."""
    shown = [line for line in (*left_out, *beside) if line.strip()]
    indentation = min((line[: len(line) - len(line.lstrip())] for line in shown), default="")
    return f"{indentation}{elision(path)}"
