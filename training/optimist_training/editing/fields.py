"""Changes of fields in JSON and YAML."""

import random
import re
from collections import Counter

_FIELD = re.compile(
    r'^(?P<indent> *)(?P<quote>"?)(?P<key>[\w.-]+)(?P=quote)\s*:'
    r"(?:[ ]+(?P<value>\"[^\"\\]*\"|'[^'\\]*'|[\w./:@+-]+))?(?P<end>,?)$"
)


def field_change(text: str, rng: random.Random) -> tuple[str, str] | None:
    """Returns a task to set a field, and the document after it.

    Args:
        text: JSON with a field on each line, or YAML in block style.
        rng: Which field, and to what.

    Returns:
        None if no scalar field has a path of its own.
    """
    lines = text.split("\n")
    fields = _fields(lines)
    counts = Counter(path for path, _ in fields)
    fields = [one for one in fields if counts[one[0]] == 1]
    if not fields:
        return None
    path, number = rng.choice(fields)
    found = _FIELD.match(lines[number])
    if found is None:
        return None
    old = found["value"]
    new = _other(old, [one for one in (_value(lines[n]) for _, n in fields) if one], rng)
    if new == old:
        return None
    lines[number] = lines[number][: found.start("value")] + new + found["end"]
    shown = new.strip("\"'")
    task = rng.choice(("Set `{}` to `{}`.", "Change `{}` to `{}`.")).format(path, shown)
    return task, "\n".join(lines)


def _fields(lines: list[str]) -> list[tuple[str, int]]:
    """Returns the paths of scalar fields, joined by dots, and their lines; none below lists."""
    found: list[tuple[str, int]] = []
    parents: list[tuple[int, str | None]] = []
    for number, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        while parents and parents[-1][0] >= indent:
            parents.pop()
        if line.lstrip().startswith(("-", "{", "[")):
            if indent or line.lstrip().startswith("-"):
                parents.append((indent, None))
            continue
        match = _FIELD.match(line)
        if match is None:
            opened = re.match(r'^ *"([\w.-]+)"\s*: [{\[]$', line)
            parents.append((indent, opened[1] if opened and line.endswith("{") else None))
            continue
        keys = [*(key for _, key in parents), match["key"]]
        if match["value"] is None:
            parents.append((indent, match["key"]))
        elif None not in keys:
            found.append((".".join(str(key) for key in keys), number))
    return found


def _value(line: str) -> str | None:
    found = _FIELD.match(line)
    return found["value"] if found else None


def _other(old: str, others: list[str], rng: random.Random) -> str:
    """Returns another value of the same type, written in the same quotes."""
    bare = old.strip("\"'")
    quote = old[0] if old[0] in "\"'" else ""
    if bare in ("true", "false"):
        return quote + ("false" if bare == "true" else "true") + quote
    if re.search(r"\d", bare):
        digits = re.sub(r"\d+", lambda found: _digits(found[0], rng), bare)
        return f"{quote}{digits}{quote}"
    words = [one.strip("\"'") for one in others if one[0].isalpha() or one[0] in "\"'"]
    words = [one for one in words if re.fullmatch(r"[A-Za-z][\w-]+", one)] or ["other"]
    return f"{quote}{rng.choice(words)}{quote}"


def _digits(old: str, rng: random.Random) -> str:
    length = len(old)
    if length == 1:
        return str(rng.randrange(10))
    return str(rng.randrange(10 ** (length - 1), 10**length))
