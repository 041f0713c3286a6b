"""Texts are read for what they repeat: blocks of a prompt, classes of tokens, contexts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optimist_aligner.model.layout import NUM_CLASSES
from optimist_aligner.text import token_class as classes
from optimist_aligner.text.context_index import MOST_ORDER, MOST_TOKEN_ID, ContextIndex, Offsets
from optimist_aligner.text.prompt_blocks import find_blocks, find_numbered_lines
from optimist_aligner.text.token_class import token_class

lines = st.lists(
    st.sampled_from(
        ["", "```", "```python", "````", "~~~", "<file>", "</file>", "<a>b</a>", "x = 1", "1: x"]
    ),
    max_size=12,
).map("\n".join)


def blocks(prompt: str) -> list[str]:
    return [prompt[block.start : block.end] for block in find_blocks(prompt)]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Change:\n```python\nx = 1\n```\nEnd", ["x = 1\n"]),
        ("```\na\n```\nand\n~~~ text\nb\n~~~\n", ["a\n", "b\n"]),
        ("````md\n```python\nx\n```\n````\n", ["```python\nx\n```\n"]),
        ("```md\n# a\n```sh\nls\n```\nb\n```\nafter", ["# a\n```sh\nls\n```\nb\n"]),
        ("<code>\nx\n</code>\n<update>y</update>", ["x\n", "y"]),
        ('<file path="a.py">\nx < 1\n</file>', ["x < 1\n"]),
        ("<file>\n```\nx\n```\n</file>", ["```\nx\n```\n"]),
        ("```\nnever closed", []),
        ("<file>\nnever closed", []),
        ("", []),
    ],
)
def test_blocks_are_what_fences_and_tags_hold(prompt: str, expected: list[str]) -> None:
    assert blocks(prompt) == expected


@pytest.mark.parametrize("mark", ["→", "\t", ":", "|", " |"])
def test_numbered_lines_are_read_without_their_numbers(mark: str) -> None:
    text = "def f():\n    return 1\n\nx = 2\n"
    shown = "".join(
        f"{number:6}{mark}{line}" for number, line in enumerate(text.splitlines(keepends=True), 9)
    )
    (found,) = find_numbered_lines(f"file:\n{shown}end\n")
    assert (found.start, found.text) == (6, text)


@given(prompt=lines)
def test_blocks_are_apart_and_in_order(prompt: str) -> None:
    end = 0
    for block in find_blocks(prompt):
        assert end <= block.start < block.end <= len(prompt)
        end = block.end


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("\n", "):\n    "), classes.NEWLINE),
        (("    ",), classes.SPACE),
        ((" word",), classes.SPACED_WORD),
        (("word", "漢", "_"), classes.WORD),
        (("12",), classes.NUMBER),
        (("([",), classes.OPENING),
        ((")",), classes.CLOSING),
        ((",",), classes.COMMA),
        (('"',), classes.QUOTE),
        (("", "+=", "\ufffd"), classes.OTHER),
    ],
)
def test_class_is_that_of_the_first_sign_that_is_no_space(
    texts: tuple[str, ...], expected: int
) -> None:
    assert {token_class(text) for text in texts} == {expected}
    assert 0 <= expected < NUM_CLASSES


token_lists = st.lists(st.integers(-1, 3), max_size=40) | st.lists(
    st.sampled_from([-1, 0, MOST_TOKEN_ID - 1, MOST_TOKEN_ID]), max_size=20
)
few_tokens = st.integers(0, 3)
offset_lists = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


def brute_offsets(text: list[int], context: list[int], start: int = 0) -> list[int]:
    first = start + len(context)
    return [end for end in range(first, len(text) + 1) if text[end - len(context) : end] == context]


@given(
    sources=st.lists(few_tokens, max_size=5),
    is_indexed=st.booleans(),
    parts=st.lists(token_lists, max_size=6),
    other=st.lists(few_tokens, max_size=6),
)
@example([], True, [[MOST_TOKEN_ID] * 9], [MOST_TOKEN_ID, -1])
def test_offsets_are_those_of_a_search_of_all_or_of_the_output_alone(
    sources: list[int], is_indexed: bool, parts: list[list[int]], other: list[int]
) -> None:
    text, start = list(sources), 0 if is_indexed else len(sources)
    index = ContextIndex(text, start)
    for part in parts:
        text.extend(part)
        index.find((0,))
    said = [*text[start:], *other]
    for order in range(1, MOST_ORDER + 1):
        for end in range(order, len(said) + 1):
            context = said[end - order : end]
            assert index.find(tuple(context)) == brute_offsets(text, context, start)


@given(offsets=offset_lists, most=st.integers(1, 22))
def test_latest_and_rank_count_from_the_end(offsets: list[int], most: int) -> None:
    found = Offsets(offsets)
    assert found.latest(most) == offsets[::-1][:most][::-1]
    assert [found.rank(each) for each in reversed(offsets)] == list(range(len(offsets)))


@given(offsets=offset_lists, offset=st.integers(-2, 62), most=st.integers(1, 12))
def test_nearest_are_side_by_side_and_most_of_them_ahead(
    offsets: list[int], offset: int, most: int
) -> None:
    found = Offsets(offsets).nearest(offset, most)
    assert len(found) == min(most, len(offsets))
    first = offsets.index(found[0])
    assert found == offsets[first : first + len(found)]
    before, ahead = (
        sum(each < offset for each in offsets),
        sum(each >= offset for each in offsets),
    )
    if len(offsets) > most and before >= most // 3 and ahead >= most - most // 3:
        assert sum(each < offset for each in found) == most // 3
