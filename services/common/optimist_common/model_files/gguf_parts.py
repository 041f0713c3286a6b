"""GGUF files that are split into several, by their names."""

import re
from pathlib import Path

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.DOTALL)


def gguf_parts(path: Path) -> list[Path]:
    """Returns all files of a model, `path` among them; one if it is not called a part."""
    match = _PART.fullmatch(path.stem)
    if match is None:
        return [path]
    count = match["count"]
    names = (f"{match['stem']}-{number + 1:05}-of-{count}" for number in range(int(count)))
    return [path.with_name(f"{name}{path.suffix}") for name in names]


def gguf_stem(path: Path) -> str:
    """Returns the model's name: the file's, without what numbers it among its parts."""
    match = _PART.fullmatch(path.stem)
    return path.stem if match is None else match["stem"]
