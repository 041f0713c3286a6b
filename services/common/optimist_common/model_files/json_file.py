"""Reads files that others wrote, with a bound on whatever a wrong one could take."""

import json
import os
import stat
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 4 * 2**20
"""Of files that people write; a config with thousands of names in it has some 100 KB."""
MAX_DEPTH = 64
_MAX_PARTS = 2**20
"""Lists and objects in a file: the largest vocabularies have half a million pairs."""


class FileError(Exception):
    """A file is missing or wrong; the text names the file, the key and what is right."""


def read_file(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a regular file, which may be a link to one.

    Raises:
        FileNotFoundError: There is none.
        FileError: It is something else, such as a pipe, which would never end; too large; or
            cannot be read.
    """
    try:
        # A pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileError(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path.name} is not a regular file")
        if status.st_size > max_bytes:
            raise FileError(f"{path.name} has {status.st_size} bytes; {max_bytes} are the most")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)
    except OSError as error:
        raise FileError(f"{path.name} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Returns a text file; raises what `read_file` raises, and FileError if it is not UTF-8."""
    return _decode(read_file(path, max_bytes), path.name)


def read_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        FileNotFoundError: There is none.
        FileError: It is not one JSON object, has a name twice in an object, is nested too deeply,
            or has a number that no library takes.
    """
    return parse_object(read_file(path, max_bytes), path.name)


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """Returns the JSON object in some bytes, by their name; raises FileError, see `read_object`."""
    if data.count(b"[") + data.count(b"{") > _MAX_PARTS:
        raise FileError(f"{name} has more than {_MAX_PARTS} lists and objects")
    text = _decode(data, name)
    if not text.strip():
        raise FileError(f"{name} is empty")
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise FileError(f"{name} is nested more than {MAX_DEPTH} deep") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise FileError(f"{name} is not JSON: {error.msg} at {where}") from None
    except ValueError as error:
        raise FileError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise FileError(f"{name} is not a JSON object but {kind(value)}")
    _check_parts(value, name)
    return value


def kind(value: object) -> str:
    """Returns what a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {str: "a text", int: "a whole number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


def shown(value: object) -> str:
    """Returns a JSON value as it is in the file, the beginning of a long one."""
    if isinstance(value, list | dict):
        return kind(value)
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Libraries differ in which of two values they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{shown(key)} is there twice")
            seen.add(key)
    return found


def _check_parts(value: dict[str, Any], name: str) -> None:
    """Raises FileError for what is nested too deeply, and for numbers that are none."""
    parts: Iterable[tuple[str, Any]] = value.items()
    for _ in range(MAX_DEPTH):
        deeper: list[tuple[str, Any]] = []
        for key, part in parts:
            if isinstance(part, dict):
                deeper += part.items()
            elif isinstance(part, list):
                deeper += [(key, each) for each in part if isinstance(each, list | dict | float)]
            elif isinstance(part, float) and not isfinite(part) and key not in _MAY_BE_INFINITE:
                raise FileError(f"{name}: {key} is {shown(part)}; it must be a finite number")
        if not deeper:
            return
        parts = deeper
    raise FileError(f"{name} is nested more than {MAX_DEPTH} deep")


_MAY_BE_INFINITE = ("time_step_limit",)
"""Of state-space models, which are refused for another reason."""
