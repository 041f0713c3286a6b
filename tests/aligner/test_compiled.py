"""The compiled aligner gives the same drafts as its specification in Python."""

import os
import re
import sys
from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optimist_aligner
from optimist_aligner.algorithm import Algorithm, Follower
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.follower import Aligner
from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from tests.command import run
from tests.proposer.text import tree_of

needs_compiled = pytest.mark.skipif(
    not optimist_aligner.IS_COMPILED, reason="the aligner is not compiled"
)

# A token for each character, and longer ones with ids that Python keeps no objects of.
TEXTS = [chr(code) for code in range(128)] + [f" word{number}" for number in range(900)]


def encode(text: str) -> list[int]:
    """Returns a word or a character as a token each."""
    pieces: list[str] = re.findall(r" word\d\d?\b|[\s\S]", text)
    return [128 + int(each[5:]) if len(each) > 1 else min(ord(each), 127) for each in pieces]


@cache
def aligners(is_chain: bool) -> tuple[Aligner, Aligner]:
    """Returns one of each kind; what is common is built once for all examples."""
    vocabulary = Vocabulary(TEXTS, encode)
    made = (
        Aligner(vocabulary, is_chain=is_chain),
        optimist_aligner.Aligner(vocabulary, is_chain=is_chain),
    )
    assert all(each.common is not None for each in made)
    return made


lines = st.builds(
    lambda indent, verb, noun, end: f"{'    ' * indent}{verb} word{noun}(word{noun + 1}){end}\n",
    st.integers(0, 2),
    st.sampled_from(["return", "if", "self.", "x ="]),
    st.integers(0, 6),
    st.sampled_from(["", ":", ", word7", " + 1"]),
)
files = st.lists(lines, min_size=8, max_size=24)


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


def columns(draft: Draft) -> list[bytes]:
    """Returns a draft as it is in memory."""
    arrays = (draft.token_ids, draft.parents, draft.positions, draft.values)
    return [each.tobytes() for each in arrays]


def follow(algorithm: Algorithm, request: tuple[list[str], str]) -> Follower:
    predictions, prompt = [array(INT32, encode(each)) for each in request[0]], encode(request[1])
    return algorithm.prepare(Sources(predictions, array(INT32, prompt))).follow()


@needs_compiled
@given(
    edits(),
    files.map("".join),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([1, 7, 32, 128]),
    st.sampled_from([0.0, 0.005, 0.05, 0.3]),
)
@settings(max_examples=25)
def test_drafts_are_the_same_to_the_last_bit(
    edit: tuple[str, str], hint: str, layout: int, is_chain: bool, window: int, least: float
) -> None:
    before, answer = edit
    request = list(layouts(before, hint))[layout]
    plain, compiled = (follow(each, request) for each in aligners(is_chain))
    rest = array(INT32, encode(answer))
    while rest:
        draft, same = (each.propose(window, least) for each in (plain, compiled))
        assert columns(same) == columns(draft)
        num_said = len(tree_of(draft).walk(rest)) + 1
        plain.observe(rest[:num_said])
        compiled.observe(rest[:num_said])
        assert compiled.num_alignments == plain.num_alignments
        rest = rest[num_said:]


tokens = st.lists(st.integers(0, 5) | st.sampled_from([130, 1027, 1028, 2**20, 2**31 - 1]))


@needs_compiled
@given(st.lists(tokens, max_size=3), tokens, st.lists(tokens, max_size=8), st.booleans())
@settings(max_examples=25)
def test_any_tokens_are_followed_alike(
    predictions: list[list[int]], prompt: list[int], parts: list[list[int]], is_chain: bool
) -> None:
    few = [[min(each, 1028) for each in tokens] for tokens in (*predictions, prompt)]
    *arrays, last = (array(INT32, each) for each in few)
    plain, compiled = (each.prepare(Sources(arrays, last)).follow() for each in aligners(is_chain))
    for part in parts:
        draft, same = (each.propose(40, 1e-4) for each in (plain, compiled))
        assert columns(same) == columns(draft)
        assert (len(same), same.is_chain, same.pack()) == (len(draft), draft.is_chain, draft.pack())
        for node in range(NO_PARENT, len(draft)):
            assert same.find_height(node) == draft.find_height(node)
            walked = array(INT32, part)
            assert same.walk(walked, node) == draft.walk(walked, node)
        plain.observe(array(INT32, part))
        compiled.observe(array(INT32, part))


@needs_compiled
@pytest.mark.parametrize("token_id", [2**20, SEPARATOR - 1])
def test_sources_with_tokens_that_no_vocabulary_has_are_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match="sources: a token is"):
        aligners(False)[1].prepare(Sources([array(INT32, [1, token_id])]))


@needs_compiled
def test_misuse_is_an_error_and_no_crash() -> None:
    follower = aligners(False)[1].prepare(Sources([array(INT32, [1, 2, 3])])).follow()
    with pytest.raises(ValueError, match="max_tokens"):
        follower.propose(0, 0.0)
    with pytest.raises(ValueError, match="negative"):
        follower.observe(array(INT32, [1, -1]))
    with pytest.raises(ValueError, match="int32"):
        follower.observe(array("q", [1]))
    draft = follower.propose(8, 0.0)
    for node in (NO_PARENT - 1, len(draft)):
        with pytest.raises(IndexError, match="node"):
            draft.find_height(node)
        with pytest.raises(IndexError, match="node"):
            draft.walk(array(INT32, [1]), node)


EXAMPLE = """
import optimist_aligner
print(optimist_aligner.IS_COMPILED)
print(optimist_aligner.Aligner(optimist_aligner.Vocabulary(["a", "b"])).common)
"""


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path) -> None:
    command = [sys.executable, "aligner/setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    command += ["bdist_wheel", "--dist-dir", str(tmp_path)]
    run(*command, env=os.environ | {"CC": "no-such-compiler", "CXX": "no-such-compiler"})
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    said = run(sys.executable, "-c", EXAMPLE, env=os.environ | {"PYTHONPATH": str(wheel)})
    assert said == "False\nNone\n"
