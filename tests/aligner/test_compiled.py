"""The package is the same, compiled or not."""

import os
import re
import sys
from array import array
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optimist_aligner
from tests.command import run
from tests.house.sitecustomize import SourceFinder
from tests.proposer.text import tree_of

PACKAGE = "optimist_aligner"


def import_sources() -> ModuleType:
    """Imports the package as pure Python, beside the one that is imported already."""

    def take() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
        return {name: sys.modules.pop(name) for name in names}

    imported = take()
    sys.meta_path.insert(0, SourceFinder)
    try:
        return import_module(PACKAGE)
    finally:
        sys.meta_path.remove(SourceFinder)
        take()
        sys.modules.update(imported)


# A token for each character, and longer ones with ids that Python keeps no objects of.
TEXTS = [chr(code) for code in range(128)] + [f" word{number}" for number in range(900)]


def encode(text: str) -> list[int]:
    """Returns a word or a character as a token each."""
    pieces: list[str] = re.findall(r" word\d\d?\b|[\s\S]", text)
    return [128 + int(each[5:]) if len(each) > 1 else min(ord(each), 127) for each in pieces]


def aligner_of(package: Any, *, is_chain: bool) -> Any:
    aligner = package.Aligner(package.Vocabulary(TEXTS, encode), is_chain=is_chain)
    # Built once for all examples.
    assert aligner.common is not None
    return aligner


PURE = import_sources()
assert not PURE.IS_COMPILED


@cache
def implementations(is_chain: bool) -> list[tuple[Any, Any]]:
    """Returns both packages, each with an aligner."""
    return [(each, aligner_of(each, is_chain=is_chain)) for each in (optimist_aligner, PURE)]


lines = st.builds(
    lambda indent, verb, noun, end: f"{'    ' * indent}{verb} word{noun}(word{noun + 1}){end}\n",
    st.integers(0, 2),
    st.sampled_from(["return", "if", "self.", "x ="]),
    st.integers(0, 6),
    st.sampled_from(["", ":", ", word7", " + 1"]),
)
files = st.lists(lines, min_size=8, max_size=40)


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and the same with a name renamed and some lines left out, changed or inserted."""
    before = draw(files)
    after = list(before)
    for _ in range(draw(st.integers(0, 4))):
        offset = draw(st.integers(0, len(after) - 1))
        after[offset : offset + draw(st.integers(0, 2))] = draw(st.lists(lines, max_size=2)) or [""]
    old, new = draw(st.integers(0, 7)), draw(st.integers(0, 20))
    text = "".join(after).replace(f" word{old}(", f" word{new}(")
    return "".join(before), text


def layouts(text: str, hint: str) -> Iterator[tuple[list[str], str]]:
    """Iterates over requests that ask for a text to be changed: predictions and the prompt."""
    yield [text], ""
    yield [text, hint], f"Change this:\n{hint}"
    yield [], f"Change this:\n```\n{text}```\nAll of it.\n{hint[:20]}"
    yield [], f"{hint}\nand\n{text}"
    numbered = "".join(f"{n}\t{line}\n" for n, line in enumerate(text.splitlines(), 1))
    yield [], f'<file>\n{numbered}</file>\n{{"content": "{hint[:40]}\\n"}}\n{hint}'


def drafts(
    implementation: tuple[Any, Any],
    request: tuple[list[str], str],
    answer: str,
    window: int,
    least: float,
) -> list[tuple[bytes, ...]]:
    """Returns the columns of all drafts on the way through an answer, as they are in memory."""
    package, aligner = implementation
    predictions, prompt = [array("i", encode(each)) for each in request[0]], encode(request[1])
    sources = package.Sources(predictions, array("i", prompt))
    follower = aligner.prepare(sources).follow()
    rest, found = array("i", encode(answer)), []
    while rest:
        draft = follower.propose(window, least)
        columns = (draft.token_ids, draft.parents, draft.positions, draft.values)
        found.append(tuple(column.tobytes() for column in columns))
        num_said = len(tree_of(draft).walk(rest)) + 1
        follower.observe(rest[:num_said])
        rest = rest[num_said:]
    return found


@pytest.mark.skipif(not optimist_aligner.IS_COMPILED, reason="the aligner is not compiled")
@given(
    edits(),
    files.map("".join),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([1, 7, 32, 128]),
    st.sampled_from([0.0, 0.005, 0.05, 0.3]),
)
def test_compiled_and_pure_drafts_are_the_same(
    edit: tuple[str, str], hint: str, layout: int, is_chain: bool, window: int, least: float
) -> None:
    before, answer = edit
    request = list(layouts(before, hint))[layout]
    compiled, pure = (
        drafts(each, request, answer, window, least) for each in implementations(is_chain)
    )
    assert compiled == pure


EXAMPLE = """
import optimist_aligner
print(optimist_aligner.IS_COMPILED)
print(optimist_aligner.Aligner(optimist_aligner.Vocabulary(["a", "b"])).common)
"""


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path) -> None:
    command = [sys.executable, "aligner/setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    command += ["bdist_wheel", "--dist-dir", str(tmp_path)]
    run(*command, env=os.environ | {"CC": "no-such-compiler"})
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    said = run(sys.executable, "-c", EXAMPLE, env=os.environ | {"PYTHONPATH": str(wheel)})
    assert said == "False\nNone\n"
