"""Small edits of code: an instruction, the code before and the code after it."""

import ast
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from typing import Literal, get_args

from optimist_training.data.corpus import Snippet, Split, snippets

Kind = Literal["rename", "constant", "delete", "insert", "docstring", "annotate", "repeat"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which edits take turns: every kind has the same share."""

_PHRASES: dict[Kind, tuple[str, ...]] = {
    "rename": ("Rename `{0}` to `{1}`.", "Rename `{0}` to `{1}` everywhere."),
    "constant": ("Change `{0}` to `{1}`.", "Replace `{0}` with `{1}`."),
    "delete": ("Delete line {0}.", "Remove line {0}."),
    "insert": ("Insert the line `{0}` before line {1}.", "Insert `{0}` before line {1}."),
    "docstring": ("Add the docstring `{0}`.", "Add `{0}` as the docstring."),
    "annotate": (
        "Give the parameter `{0}` the type `{1}`.",
        "Annotate the parameter `{0}` with `{1}`.",
    ),
    "repeat": ("Repeat the code unchanged.", "Copy the code unchanged."),
}

TYPES = ("int", "str", "bool", "float", "bytes", "list", "dict", "tuple", "set", "object", "Path")
_MAX_LINE_CHARACTERS = 60
_WORD = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Edit:
    """One request and its only right answer."""

    kind: Kind
    instruction: str
    before: str
    after: str

    def messages(self) -> list[dict[str, str]]:
        """Returns the chat messages that ask for the edit."""
        return [{"role": "user", "content": f"{self.instruction}\n\n{self.before}"}]


@dataclass(frozen=True)
class Material:
    """What edits insert, taken from the same split as the code they change."""

    names: tuple[str, ...]
    statements: tuple[str, ...]
    docstrings: tuple[str, ...]


Editor = Callable[[Snippet, Material, random.Random], Edit | None]
"""Edits a snippet, or returns None if that kind of edit does not apply to it."""


def unseen_edits(count: int, seed: int) -> list[Edit]:
    """Returns edits of code from files that no training saw, the kinds in equal shares."""
    return list(islice(edits("unseen", seed), count))


def edits(split: Split, seed: int) -> Iterator[Edit]:
    """Yields edits without end, the kinds in turn; the same seed yields the same edits."""
    rng = random.Random(f"{split} {seed}")
    sources, material = snippets(split), material_of(split)
    for kind in cycle(KINDS):
        edit = None
        while edit is None:
            edit = _EDITORS[kind](rng.choice(sources), material, rng)
        yield edit


@cache
def material_of(split: Split) -> Material:
    """Collects names, one-line statements and one-line docstrings of a split."""
    names: set[str] = set()
    statements: set[str] = set()
    docstrings: set[str] = set()
    for snippet in snippets(split):
        for node in ast.walk(ast.parse(snippet.code)):
            names.update(_bound_names(node))
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr):
                statements.add(ast.get_source_segment(snippet.code, node) or "")
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                docstrings.add((ast.get_docstring(node) or "").partition("\n")[0])
    return Material(
        tuple(sorted(name for name in names if not name.startswith("__"))),
        tuple(sorted(filter(_is_statement, statements))),
        tuple(sorted(filter(_is_docstring, docstrings))),
    )


def _bound_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def _is_statement(text: str) -> bool:
    return 3 <= len(text) <= _MAX_LINE_CHARACTERS and not re.search(r"[\n`]|^['\"]", text)


def _is_docstring(text: str) -> bool:
    return 8 <= len(text) <= _MAX_LINE_CHARACTERS and not re.search(r"[`\"'\\]|\s\s", text)


def _edit(
    kind: Kind, rng: random.Random, snippet: Snippet, after: str, *words: object
) -> Edit | None:
    """Returns the edit in one of its phrases, unless the result is no Python."""
    try:
        ast.parse(after)
    except SyntaxError:
        return None
    instruction = rng.choice(_PHRASES[kind]).format(*words)
    return Edit(kind, instruction, snippet.code, after)


def _replace_word(code: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![A-Za-z0-9_]){old}(?![A-Za-z0-9_])", new, code)


def _rename(snippet: Snippet, material: Material, rng: random.Random) -> Edit | None:
    """Renames every whole-word occurrence, also in strings and comments."""
    bound = {name for node in ast.walk(snippet.definition()) for name in _bound_names(node)}
    old, new = rng.choice(sorted(bound)), rng.choice(material.names)
    if old.startswith("__") or new in _WORD.findall(snippet.code):
        return None
    after = _replace_word(snippet.code, old, new)
    return _edit("rename", rng, snippet, after, old, new)


def _constant(snippet: Snippet, material: Material, rng: random.Random) -> Edit | None:
    """Changes a whole number or a string of one word that the snippet has once."""
    words = _WORD.findall(snippet.code)
    constants = [_constant_word(node) for node in ast.walk(snippet.definition())]
    olds = sorted({word for word in constants if word and words.count(word) == 1})
    if not olds:
        return None
    old = rng.choice(olds)
    number = str(rng.randrange(10 ** rng.randint(1, 4)))
    new = number if old.isdigit() else rng.choice(material.names)
    if new in words:
        return None
    after = _replace_word(snippet.code, old, new)
    return _edit("constant", rng, snippet, after, old, new)


def _constant_word(node: ast.AST) -> str | None:
    """Returns the text of a constant of one word, without its quotes."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(number)) if number >= 0:
            return str(number)
        case ast.Constant(value=str(text)) if re.fullmatch(r"[A-Za-z_]{2,}", text):
            return text
    return None


def _statements(snippet: Snippet) -> list[ast.stmt]:
    """Returns the statements of the body, at any depth."""
    inner = ast.walk(snippet.definition())
    return [node for node in inner if isinstance(node, ast.stmt)][1:]


def _delete(snippet: Snippet, _: Material, rng: random.Random) -> Edit | None:
    """Deletes a statement of one line, but not the last line of the code."""
    lines = snippet.code.split("\n")
    candidates = [node.lineno for node in _statements(snippet) if _has_own_line(node, lines)]
    candidates = [number for number in candidates if number < len(lines)]
    if not candidates:
        return None
    number = rng.choice(candidates)
    after = "\n".join(lines[: number - 1] + lines[number:])
    return _edit("delete", rng, snippet, after, number)


def _has_own_line(node: ast.stmt, lines: list[str]) -> bool:
    line = lines[node.lineno - 1]
    return node.lineno == node.end_lineno and line[: node.col_offset].strip() == ""


def _insert(snippet: Snippet, material: Material, rng: random.Random) -> Edit | None:
    """Inserts a statement of one line before another statement, at the same indentation."""
    lines = snippet.code.split("\n")
    candidates = [node for node in _statements(snippet) if not _is_docstring_statement(node)]
    if not candidates:
        return None
    node, line = rng.choice(candidates), rng.choice(material.statements)
    if lines[node.lineno - 1][: node.col_offset].strip():
        return None
    after = _insert_line(lines, node.lineno, node.col_offset, line)
    return _edit("insert", rng, snippet, after, line, node.lineno)


def _is_docstring_statement(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _insert_line(lines: list[str], number: int, indentation: int, line: str) -> str:
    return "\n".join([*lines[: number - 1], " " * indentation + line, *lines[number - 1 :]])


def _docstring(snippet: Snippet, material: Material, rng: random.Random) -> Edit | None:
    """Adds a docstring of one line below the header."""
    definition, lines = snippet.definition(), snippet.code.split("\n")
    body = definition.body[0]
    if ast.get_docstring(definition) is not None or not lines[body.lineno - 2].endswith(":"):
        return None
    line = f'"""{rng.choice(material.docstrings)}"""'
    after = _insert_line(lines, body.lineno, body.col_offset, line)
    return _edit("docstring", rng, snippet, after, line)


def _annotate(snippet: Snippet, _: Material, rng: random.Random) -> Edit | None:
    """Gives a type to a parameter that has neither a type nor a default."""
    definition = snippet.definition()
    if isinstance(definition, ast.ClassDef):
        return None
    arguments = definition.args
    plain = [*arguments.posonlyargs, *arguments.args]
    plain = plain[: len(plain) - len(arguments.defaults)]
    candidates = [a for a in plain if a.annotation is None and a.arg not in ("self", "cls")]
    if not candidates:
        return None
    chosen, type_name = rng.choice(candidates), rng.choice(TYPES)
    lines = snippet.code.split("\n")
    line, end = lines[chosen.lineno - 1], chosen.end_col_offset or 0
    lines[chosen.lineno - 1] = f"{line[:end]}: {type_name}{line[end:]}"
    return _edit("annotate", rng, snippet, "\n".join(lines), chosen.arg, type_name)


def _repeat(snippet: Snippet, _: Material, rng: random.Random) -> Edit | None:
    return _edit("repeat", rng, snippet, snippet.code)


_EDITORS: dict[Kind, Editor] = {
    "rename": _rename,
    "constant": _constant,
    "delete": _delete,
    "insert": _insert,
    "docstring": _docstring,
    "annotate": _annotate,
    "repeat": _repeat,
}
