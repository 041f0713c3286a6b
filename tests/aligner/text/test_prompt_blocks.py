"""Blocks of a prompt are what fences, tags and line numbers hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.prompt_blocks import find_blocks, find_numbered_lines

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


def test_list_or_log_is_no_file() -> None:
    assert find_numbered_lines("1: a\n2: b\n") == []
    assert find_numbered_lines("7: a\n5: b\n9: c\n") == []
    assert find_numbered_lines("1: a\n\n2: b\n\n3: c\n") == []


@given(prompt=lines)
def test_blocks_are_apart_and_in_order(prompt: str) -> None:
    end = 0
    for block in find_blocks(prompt):
        assert end <= block.start < block.end <= len(prompt)
        end = block.end
