"""From a request's own text the longest and nearest match is copied."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from optimist_common.lookup import LONGEST_MATCH
from optimist_worker.core.lookup import choose_sources, count_matches, find_last


def find(token_ids: list[int], cursor: int = -1, padding: int = 0) -> int:
    """Looks one row up; what lies after its length is noise."""
    row, length = torch.tensor([token_ids + [token_ids[-1]] * padding]), len(token_ids)
    return look_up(row, torch.tensor([length]), cursor)[0][0]


def look_up(
    token_ids: torch.Tensor, lengths: torch.Tensor, cursor: int
) -> tuple[list[int], list[int]]:
    texts = torch.nn.functional.pad(token_ids, (LONGEST_MATCH, 0), value=-1)
    num_matched = count_matches(texts, find_last(token_ids, lengths))
    indices = torch.arange(token_ids.shape[1])
    found = choose_sources(num_matched, indices, lengths, torch.full_like(lengths, cursor))
    return found.indices.tolist(), found.num_matched.tolist()


def worth(token_ids: list[int], index: int, cursor: int) -> tuple[int, int]:
    """How many tokens before an index are the last ones; of equal matches the nearest is taken."""
    most, matched = min(LONGEST_MATCH, index), 0
    while matched < most and token_ids[index - 1 - matched] == token_ids[-1 - matched]:
        matched += 1
    return matched, -(abs(index - cursor) if cursor >= 0 else index)


@example([[1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3], [7, 3, 9, 2, 3, 8, 2, 3]], -1)
@example([[5, 6, 1, 5, 6, 2, 5, 6, 3, 5, 6]], 4)
@example([[5, 6, 1, 5, 6, 2, 5, 6, 3, 5, 6]], -1)
@example([[*range(1, 9), 0, 9, *range(2, 9), 0, *range(1, 9)]], 17)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4),
    st.integers(-1, 30),
)
def test_the_longest_and_nearest_match_is_taken_whatever_lies_beside(
    rows: list[list[int]], cursor: int
) -> None:
    width = max(map(len, rows)) + 2
    table = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    found, num_matched = look_up(table, lengths, cursor)
    assert found == [find(row, cursor) for row in rows]
    for row, index, matched in zip(rows, found, num_matched, strict=True):
        best = max((worth(row, each, cursor) for each in range(1, len(row))), default=(0, 0))
        assert matched == best[0]
        if best[0]:
            assert worth(row, index, cursor) == best
        else:
            # Where nothing matches the copy goes on after the cursor.
            assert index == (cursor if cursor < len(row) else -1)
