import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.tables import MAX_LEN, SIZE, make_tables


def fit(
    num_tokens: int,
    num_computed: int,
    known: int,
    drafts: int,
    num_blocks: int = 10,
    *,
    has_ended: bool = False,
    **options: int,
) -> tuple[int, bool, int, bool]:
    """Known tokens, whether the row emits, most drafts, whether it is short of blocks."""
    tables = make_tables()
    tables.admit(2, [1] * num_tokens, num_blocks, **options)
    tables.table.store(
        torch.tensor([2]),
        num_computed_tokens=torch.tensor([num_computed]),
        has_ended=torch.tensor([int(has_ended)]),
    )
    rows = tables.fit((2, known, drafts))
    assert rows.starts.tolist() == [num_computed]
    assert int(rows.ends) == num_computed + int(rows.num_known_tokens)
    return (
        int(rows.num_known_tokens),
        bool(rows.emits),
        int(rows.limits),
        bool(rows.is_short),
    )


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ((9, 0, 4, 5), (4, False, 0, False)),
        ((9, 4, 5, 5), (5, True, 5, False)),
        ((9, 8, 1, 0), (1, True, 0, False)),
        # More known tokens than there are.
        ((9, 8, 30, 3), (1, True, 3, False)),
        # Drafts end with the blocks, known tokens need them.
        ((9, 8, 1, 9, 3), (1, True, 3, False)),
        ((9, 8, 1, 9, 2), (0, False, 0, True)),
        ((9, 0, 9, 9, 2), (0, False, 0, True)),
        ((9, 0, 8, 9, 2), (8, False, 0, False)),
    ],
)
def test_rows_are_fitted_to_their_state(
    case: tuple[int, ...], expected: tuple[int, bool, int, bool]
) -> None:
    assert fit(*case) == expected


def test_drafts_leave_room_for_the_token_behind_them() -> None:
    assert fit(9, 8, 1, 20, max_length=14) == (1, True, 4, False)
    assert fit(9, 8, 1, 20, max_length=10) == (1, True, 0, False)
    assert fit(MAX_LEN - 1, MAX_LEN - 2, 1, 9) == (1, True, 0, False)


def test_ended_requests_do_not_run() -> None:
    assert fit(9, 8, 1, 5, has_ended=True) == (0, False, 0, False)
    # Not even if they would be short.
    assert fit(9, 8, 1, 5, 2, has_ended=True) == (0, False, 0, False)


def test_padding_does_not_run() -> None:
    tables = make_tables()
    tables.admit(0, [1, 2])
    rows = tables.fit((4, 0, 0), (0, 2, 1), (4, 0, 0))
    assert rows.num_known_tokens.tolist() == [0, 2, 0]
    assert rows.emits.tolist() == [False, True, False]
    assert rows.is_short.tolist() == [False] * 3


@given(
    num_tokens=st.integers(1, MAX_LEN - 1),
    computed=st.integers(0, MAX_LEN),
    known=st.integers(0, 50),
    drafts=st.integers(0, 50),
    num_blocks=st.integers(0, 10),
    has_ended=st.booleans(),
)
def test_what_is_fed_has_a_place(
    num_tokens: int, computed: int, known: int, drafts: int, num_blocks: int, has_ended: bool
) -> None:
    computed = min(computed, num_tokens - 1, num_blocks * SIZE)
    fed, emits, limit, is_short = fit(
        num_tokens, computed, known, drafts, num_blocks, has_ended=has_ended
    )
    assert 0 <= fed <= known
    assert 0 <= limit <= drafts
    assert computed + fed + limit <= min(num_blocks * SIZE, MAX_LEN - 1)
    assert emits == (fed > 0 and computed + fed == num_tokens)
    assert not (is_short and fed)
    assert emits or not limit
