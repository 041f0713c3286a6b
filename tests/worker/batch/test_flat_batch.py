"""Passes of drafters over verified tokens, and over a level of drafts, token by token.

The target's passes are compared with those of other implementations: see `test_model`.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.batch.flat_batch import (
    FedLevel,
    PassSize,
    build_known_batch,
    build_level_batch,
)
from tests.worker.tables import MAX_LEN, NUM_BLOCKS, NUM_SLOTS, SIZE, VOCAB, make_tables

TRASH = range(NUM_BLOCKS * SIZE, (NUM_BLOCKS + 1) * SIZE)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Slots, their lengths, and from where how many tokens are fed."""
    found = []
    slots = draw(st.permutations(range(NUM_SLOTS)))
    for slot in slots[: draw(st.integers(1, NUM_SLOTS))]:
        length = draw(st.integers(1, 12))
        first = draw(st.integers(0, length - 1))
        found.append((slot, length, first, draw(st.integers(0, length - first))))
    return found


@given(rows=rows(), num_padded=st.integers(0, 3), shift=st.integers(0, 1))
def test_verified_tokens_are_fed_from_any_index_on(
    rows: list[tuple[int, int, int, int]], num_padded: int, shift: int
) -> None:
    tables, texts = make_tables(), dict[int, list[int]]()
    for slot, length, *_ in rows:
        texts[slot] = [(5 + 11 * slot + 3 * index) % VOCAB for index in range(length)]
        tables.admit(slot, texts[slot])
    slots, _, starts, lengths = torch.tensor(rows).T
    number = int(lengths.sum())
    if number + num_padded == 0:
        return
    size = PassSize(number + num_padded, len(rows), 20, MAX_LEN)
    batch, tokens = build_known_batch(
        tables.table, tables.pool, slots, starts, lengths, size, shift=shift
    )
    assert tokens.starts[-1] == number
    at = 0
    for index, (slot, _, first, fed) in enumerate(rows):
        text, blocks = [*texts[slot], 0], tables.blocks(slot, 10)
        for position in range(first, first + fed):
            assert batch.input_ids[at] == text[position + shift]
            assert batch.positions[at] == position
            in_pool = blocks[position // SIZE] * SIZE + position % SIZE
            assert batch.attention.slot_mapping[at] == in_pool
            at += 1
        if fed:
            assert batch.logits_indices[index] == at - 1
        assert batch.attention.num_computed_tokens[index] == first
        assert batch.attention.tree_starts[index] == first + fed
    assert set(batch.attention.slot_mapping[number:].tolist()) <= set(TRASH)


def test_a_level_lies_after_what_was_fed_before() -> None:
    tables = make_tables()
    tables.admit(1, [1] * 6)
    tables.admit(2, [1] * 3)
    slots, first = torch.tensor([2, 1]), torch.tensor([3, 6])
    token_ids = torch.tensor([[40, 41], [42, 43]])
    bits = torch.tensor([[0b101, 0b1010], [0b101, 0b1001]])
    level = FedLevel(token_ids, depth=2, num_fed=2, bits=bits)
    batch = build_level_batch(tables.table, tables.pool, slots, first, level, MAX_LEN)
    assert batch.input_ids.tolist() == [40, 41, 42, 43]
    assert batch.positions.tolist() == [4, 4, 7, 7]
    indices = tables.table.kv_indices(torch.tensor([2, 2, 1, 1]), torch.tensor([5, 6, 8, 9]))
    attention = batch.attention
    assert torch.equal(attention.slot_mapping, indices)
    assert attention.query_starts.tolist() == [0, 2, 4]
    assert attention.num_computed_tokens.tolist() == [5, 8]
    assert attention.tree_starts.tolist() == [3, 6]
    assert attention.ancestors is not None
    assert attention.ancestors.tolist() == bits.flatten().tolist()
    assert batch.logits_indices.tolist() == [0, 1, 2, 3]


def test_positions_of_drafts_stay_within_what_the_model_knows() -> None:
    tables = make_tables()
    tables.admit(1, [1] * (MAX_LEN - 1))
    level = FedLevel(torch.tensor([[40]]), depth=5, num_fed=4, bits=None)
    slots, first = torch.tensor([1]), torch.tensor([MAX_LEN - 1])
    batch = build_level_batch(tables.table, tables.pool, slots, first, level, MAX_LEN)
    assert batch.positions.tolist() == [MAX_LEN - 1]
    assert set(batch.attention.slot_mapping.tolist()) <= set(TRASH)
