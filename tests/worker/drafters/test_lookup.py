"""Tests of the lookup in a request's own text."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.drafters.ngram import find_sources


def find(token_ids: list[int], cursor: int = -1, padding: int = 0) -> int:
    """Looks one row up; what lies after its length is noise."""
    row = torch.tensor([token_ids + [token_ids[-1]] * padding])
    found = find_sources(row, torch.tensor([len(token_ids)]), torch.tensor([cursor]))
    return int(found[0])


def test_the_longest_match_is_taken() -> None:
    assert find([1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3]) == 3
    assert find([7, 3, 9, 2, 3, 8, 2, 3]) == 5


def test_of_equal_matches_the_one_next_to_the_cursor_is_taken() -> None:
    text = [5, 6, 1, 5, 6, 2, 5, 6, 3, 5, 6]
    assert [find(text, cursor) for cursor in (2, 4, 5, 9)] == [2, 5, 5, 8]
    assert find(text) == 2


def test_where_nothing_matches_the_copy_goes_on_after_the_cursor() -> None:
    assert find([1, 2, 3, 4, 9], cursor=2) == 2
    assert find([1, 2, 3, 4, 9]) == -1
    assert find([1, 2, 9], cursor=3) == -1


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4),
    st.integers(-1, 30),
)
def test_rows_do_not_depend_on_each_other_or_on_padding(rows: list[list[int]], cursor: int) -> None:
    width = max(map(len, rows)) + 2
    table = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    found = find_sources(table, lengths, torch.full_like(lengths, cursor)).tolist()
    assert found == [find(row, cursor) for row in rows]
    for row, place in zip(rows, found, strict=True):
        assert place == -1 or place < len(row)
        if place >= 0 and place != cursor:
            assert row[place - 1] == row[-1]
