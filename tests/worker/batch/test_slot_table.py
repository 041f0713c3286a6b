"""A slot keeps nothing of its last holder, and plans are fitted to its state."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.batch.slot_table import SlotColumns
from tests.worker.tables import MAX_LEN, NUM_BLOCKS, SIZE, Tables, make_tables


@pytest.fixture
def tables() -> Tables:
    return make_tables()


def columns(tables: Tables, slot: int) -> dict[str, int]:
    gathered = tables.table.gather(torch.tensor([slot]))
    return {name: int(getattr(gathered, name)) for name in SlotColumns._fields}


def indices(tables: Tables, slot: int, wanted: list[int]) -> list[int]:
    slots = torch.full((len(wanted),), slot)
    found: list[int] = tables.table.kv_indices(slots, torch.tensor(wanted).long()).tolist()
    return found


def test_nothing_is_left_of_the_last_holder(tables: Tables) -> None:
    tables.admit(1, [3] * 9, stop_token_ids=[4, 5], min_length=12)
    index = torch.tensor([1])
    tables.table.store(index, num_computed_tokens=index + 7, has_ended=index)
    tables.admit(1, [6, 7], 1)
    assert columns(tables, 1) == {
        "num_tokens": 2,
        "num_computed_tokens": 0,
        "has_ended": 0,
        "num_prompt_tokens": 2,
        "max_length": MAX_LEN,
        "min_length": 0,
        "capacity": SIZE,
    }
    assert set(tables.table.stop_token_ids[1].tolist()) == {-1}
    trash = NUM_BLOCKS * SIZE
    assert indices(tables, 1, [3, 4, 9]) == [tables.blocks(1, 1)[0] * SIZE + 3, trash, trash + 1]


@given(
    num_tokens=st.integers(1, MAX_LEN - 1),
    computed=st.integers(0, MAX_LEN),
    known=st.integers(0, 50),
    drafts=st.integers(0, 50),
    num_blocks=st.integers(0, 10),
    room=st.integers(1, MAX_LEN),
    has_ended=st.booleans(),
)
def test_rows_are_fitted_to_their_state(
    num_tokens: int,
    computed: int,
    known: int,
    drafts: int,
    num_blocks: int,
    room: int,
    has_ended: bool,
) -> None:
    capacity, max_length = num_blocks * SIZE, min(MAX_LEN, num_tokens + room)
    computed = min(computed, num_tokens - 1, capacity)
    tables = make_tables()
    tables.admit(2, [1] * num_tokens, num_blocks, max_length=max_length)
    state = {"num_computed_tokens": [computed], "has_ended": [int(has_ended)]}
    stored = {name: torch.tensor(column) for name, column in state.items()}
    tables.table.store(torch.tensor([2]), **stored)
    rows = tables.fit((2, known, drafts))
    fed = min(known, num_tokens - computed)
    is_short = not has_ended and computed + fed > capacity
    if has_ended or is_short:
        fed = 0
    emits = fed > 0 and computed + fed == num_tokens
    # Known tokens need blocks; drafts end with these, and leave room for the token after them.
    most = min(drafts, capacity - computed - fed, max_length - 1 - num_tokens)
    assert (int(rows.starts), int(rows.ends)) == (computed, computed + fed)
    assert (int(rows.num_known_tokens), bool(rows.emits)) == (fed, emits)
    assert (int(rows.limits), bool(rows.is_short)) == (most if emits else 0, is_short)
