"""Named changes to a file: an instruction in words, and the file after it."""

import ast
import keyword
import random
import re
from collections import Counter
from collections.abc import Callable

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BOUND = re.compile(
    r"(?:\b(?:def|class|func|function|const|let|var|type)\s+|^[ \t]*(?:self\.|this\.)?)"
    r"([A-Za-z_][A-Za-z0-9_]{2,})(?=\s*(?:\(|:?=[^=]|:\s))",
    re.MULTILINE,
)
_CONSTANT = re.compile(
    r"\b([A-Za-z_]\w+)(\s*(?::=|[=:])\s*)(\d+(?:\.\d+)?|\"[\w./-]{2,24}\"|'[\w./-]{2,24}')"
    r"(?=\s*[,;)\n])"
)
_KEYWORDS = {*keyword.kwlist, "const", "default", "func", "function", "let", "this", "type", "var"}
_IMPORTS = (
    "import argparse",
    "import asyncio",
    "import collections",
    "import contextlib",
    "import copy",
    "import csv",
    "import datetime",
    "import functools",
    "import hashlib",
    "import io",
    "import itertools",
    "import json",
    "import logging",
    "import math",
    "import os",
    "import random",
    "import re",
    "import shutil",
    "import subprocess",
    "import sys",
    "import tempfile",
    "import threading",
    "import time",
    "import uuid",
    "import warnings",
    "from collections import Counter",
    "from collections import defaultdict",
    "from contextlib import suppress",
    "from dataclasses import dataclass",
    "from datetime import timedelta",
    "from enum import Enum",
    "from functools import lru_cache",
    "from functools import partial",
    "from itertools import chain",
    "from pathlib import Path",
    "from typing import Any",
    "from typing import Optional",
)


Change = tuple[str, str]
"""A task, and what the file is after it."""


def named_change(
    kind: str, text: str, path: str, names: list[str], rng: random.Random
) -> Change | None:
    """Returns a change of a kind of NAMED, or None if the file has no place for one.

    Args:
        kind: Of NAMED.
        text: The file.
        path: Of the file.
        names: Identifiers that new names are chosen from.
        rng: What is chosen, and in which words.
    """
    made = NAMED[kind](text, path, names, rng)
    if made is None or made[1] == text:
        return None
    if path.endswith(".py") and _parsed(text) and not _parsed(made[1]):
        return None
    return made


def _rename(text: str, path: str, names: list[str], rng: random.Random) -> Change | None:
    words = _WORD.findall(text)
    bound = sorted({name for name in _BOUND.findall(text) if name not in _KEYWORDS})
    bound = [name for name in bound if words.count(name) <= 12]
    if not bound:
        return None
    old, new = rng.choice(bound), _similar(rng, names, rng.choice(bound))
    if new in words or new in _KEYWORDS:
        return None
    task = rng.choice(("Rename `{}` to `{}`.", "Rename `{}` to `{}` everywhere."))
    return task.format(old, new), re.sub(rf"\b{old}\b", new, text)


def _similar(rng: random.Random, names: list[str], name: str) -> str:
    """Returns a name written like another one, where some can be found."""
    some = [rng.choice(names) for _ in range(20)]
    alike = [one for one in some if _case(one) == _case(name)]
    return (alike or some)[0]


def _case(name: str) -> tuple[bool, bool, bool]:
    return name[0].isupper(), "_" in name.strip("_"), name.isupper()


def _constant(text: str, path: str, names: list[str], rng: random.Random) -> Change | None:
    found = list(_CONSTANT.finditer(text))
    once = [one for one in found if sum(other[1] == one[1] for other in found) == 1]
    if not once:
        return None
    chosen = rng.choice(once)
    name, old = chosen[1], chosen[3]
    new = _other_value(old, names, rng)
    templates = ["Set `{0}` to `{2}`.", "Change the value of `{0}` to `{2}`."]
    if text.count(old) == 1:
        templates += ["Change `{1}` to `{2}`.", "Change `{0}` from `{1}` to `{2}`."]
    task = rng.choice(templates).format(name, old, new)
    return task, text[: chosen.start(3)] + new + text[chosen.end(3) :]


def _other_value(old: str, names: list[str], rng: random.Random) -> str:
    if old[0] in "\"'":
        return f"{old[0]}{rng.choice(names)}{old[0]}"
    if "." in old:
        return f"{rng.randrange(100)}.{rng.randrange(1, 100)}"
    return str(rng.randrange(10 ** rng.randint(1, 5)))


def _add_parameter(text: str, path: str, names: list[str], rng: random.Random) -> Change | None:
    pattern = (
        r"^[ \t]*(?:async )?def (\w+)\(([^()\n]*)\)[^\n]*:$"
        if path.endswith(".py")
        else r"^[ \t]*(?:export )?(?:async )?function (\w+)\(([^()\n]*)\) \{$"
    )
    found = list(re.finditer(pattern, text, re.MULTILINE))
    found = [one for one in found if sum(other[1] == one[1] for other in found) == 1]
    if not found:
        return None
    chosen = rng.choice(found)
    parameters = chosen[2]
    if "*" in parameters or "..." in parameters or parameters.endswith(","):
        return None
    name = rng.choice(names)
    if not name.islower() or name in _WORD.findall(text) or name in _KEYWORDS:
        return None
    default = rng.choice(("None", "False", "True", "0", "10", '""'))
    if not path.endswith(".py"):
        default = {"None": "null", "False": "false", "True": "true"}.get(default, default)
    new = f"{name}={default}" if path.endswith(".py") else f"{name} = {default}"
    if rng.random() < 0.25 and "=" not in parameters:
        new = name
    templates = ("Add a parameter `{1}` to `{0}`.", "Give `{0}` a last parameter `{1}`.")
    joined = f"{parameters}, {new}" if parameters.strip() else new
    after = text[: chosen.start(2)] + joined + text[chosen.end(2) :]
    return rng.choice(templates).format(chosen[1], new), after


def _add_import(text: str, path: str, names: list[str], rng: random.Random) -> Change | None:
    """Adds an import below the first block of imports."""
    tree = _parsed(text) if path.endswith(".py") else None
    if tree is None:
        return None
    last = None
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node
        elif last is not None:
            break
    if last is None or last.end_lineno is None:
        return None
    line = rng.choice(_IMPORTS)
    if line in text:
        return None
    lines = text.split("\n")
    lines.insert(last.end_lineno, line)
    templates = ("Add `{}`.", "Add the import `{}` after the other imports.")
    return rng.choice(templates).format(line), "\n".join(lines)


def _delete_function(text: str, path: str, names: list[str], rng: random.Random) -> Change | None:
    """Deletes a function with the empty lines before it, or after it at the start of a block."""
    tree = _parsed(text) if path.endswith(".py") else None
    if tree is None:
        return None
    functions = [
        (parent, node)
        for parent in ast.walk(tree)
        if isinstance(parent, ast.Module | ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    counts = Counter(node.name for _, node in functions)
    alone = [node for parent, node in functions if len(parent.body) > 1 and counts[node.name] == 1]
    if not alone:
        return None
    node = rng.choice(alone)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
    last = node.end_lineno or first
    lines = text.split("\n")
    while first > 0 and not lines[first - 1].strip():
        first -= 1
    after = "\n".join([*lines[:first], *lines[last:]]).lstrip("\n")
    what = "method" if node.col_offset else "function"
    templates = ("Delete the {0} `{1}`.", "Remove `{1}`.", "Remove the {0} `{1}`.")
    return rng.choice(templates).format(what, node.name), after


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


Maker = Callable[[str, str, list[str], random.Random], Change | None]
"""Makes a change of a file, its path and names."""

NAMED: dict[str, Maker] = {
    "rename": _rename,
    "constant": _constant,
    "parameter": _add_parameter,
    "import": _add_import,
    "delete": _delete_function,
}
