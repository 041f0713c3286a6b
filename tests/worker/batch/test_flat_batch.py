"""Flat batches against what each of their tokens should be, one by one."""

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.batch.flat_batch import (
    FedLevel,
    PassSize,
    build_known_batch,
    build_level_batch,
    build_verify_batch,
)
from optimist_worker.core.drafts import Drafts, lay_out
from tests.worker.tables import MAX_LEN, NUM_BLOCKS, NUM_SLOTS, SIZE, VOCAB, Tables, make_tables

TRASH = range(NUM_BLOCKS * SIZE, (NUM_BLOCKS + 1) * SIZE)


@dataclass
class Row:
    """A row of a pass."""

    slot: int
    num_tokens: int
    num_computed: int
    known: int
    parents: list[int]
    """One per draft."""

    @property
    def emits(self) -> bool:
        return self.num_computed + self.known == self.num_tokens

    @property
    def is_chain(self) -> bool:
        return self.parents == list(range(-1, len(self.parents) - 1))

    def path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path


@st.composite
def passes(draw: st.DrawFn) -> list[Row]:
    rows = []
    slots = draw(st.permutations(range(NUM_SLOTS)))
    for slot in slots[: draw(st.integers(1, NUM_SLOTS))]:
        num_tokens = draw(st.integers(1, 12))
        computed = draw(st.integers(0, num_tokens - 1))
        known = draw(st.integers(0, num_tokens - computed))
        row = Row(slot, num_tokens, computed, known, [])
        if known and row.emits:
            number = draw(st.integers(0, 6))
            row.parents = [draw(st.integers(-1, node - 1)) for node in range(number)]
            if draw(st.booleans()):
                row.parents = list(range(-1, number - 1))
        rows.append(row)
    return rows


def sequence(slot: int, length: int) -> list[int]:
    return [(5 + 11 * slot + 3 * place) % VOCAB for place in range(length)]


def prepare(rows: list[Row]) -> Tables:
    tables = make_tables()
    for row in rows:
        tables.admit(row.slot, sequence(row.slot, row.num_tokens))
        index = torch.tensor([row.slot])
        tables.table.store(index, num_computed_tokens=torch.tensor([row.num_computed]))
    return tables


def drafts_of(rows: list[Row], width: int, *, has_trees: bool) -> Drafts:
    token_ids = torch.tensor([[40 + node for node in range(width)] for _ in rows])
    parents = [row.parents + [-1] * (width - len(row.parents)) for row in rows]
    numbers = torch.tensor([len(row.parents) for row in rows])
    return Drafts(
        token_ids=token_ids.view(len(rows), width),
        num_tokens=numbers,
        sources=torch.zeros_like(numbers),
        parents=torch.tensor(parents, dtype=torch.int64).view(-1, width) if has_trees else None,
    )


@given(rows=passes(), num_padded=st.integers(0, 3), num_padded_rows=st.integers(0, 2))
def test_a_pass_feeds_known_tokens_and_the_drafts_after_them(
    rows: list[Row], num_padded: int, num_padded_rows: int
) -> None:
    tables = prepare(rows)
    rows = rows + [Row(NUM_SLOTS, 0, 0, 0, []) for _ in range(num_padded_rows)]
    fitted = tables.fit(*((row.slot, row.known, 9) for row in rows))
    has_trees = not all(row.is_chain for row in rows)
    width = max(len(row.parents) for row in rows) + num_padded
    drafts = drafts_of(rows, width, has_trees=has_trees)
    numbers = [1 + len(row.parents) if row.known and row.emits else 0 for row in rows]
    fed = sum(row.known + len(row.parents) for row in rows)
    size = PassSize(fed + num_padded, sum(numbers) + num_padded, 20, MAX_LEN)
    nodes = lay_out(torch.tensor(numbers), size.num_logits)
    if size.num_tokens == 0:
        return
    batch, tokens = build_verify_batch(tables.table, tables.pool, fitted, drafts, nodes, size)
    assert len(batch.input_ids) == tokens.size == size.num_tokens
    check_tokens(tables, rows, batch.input_ids, batch.positions, batch.attention.slot_mapping)
    starts = batch.attention.query_starts.tolist()
    assert starts[-1] == fed
    ancestors = batch.attention.ancestors
    assert (ancestors is not None) == (has_trees and width > 0)
    for index, row in enumerate(rows):
        first = starts[index] + row.known
        if ancestors is not None:
            assert not ancestors[starts[index] : first].any()
            bits = [sum(1 << node for node in row.path(i)) for i in range(len(row.parents))]
            expected = [0] * len(bits) if row.is_chain else bits
            assert ancestors[first : first + len(bits)].tolist() == expected
        logits = batch.logits_indices[nodes.starts[index] : nodes.starts[index + 1]].tolist()
        assert logits == [first - 1 + node for node in range(numbers[index])]
    # Padding names tokens that exist, and is written where nobody reads.
    assert len(batch.logits_indices) == size.num_logits
    assert all(0 <= at < max(1, size.num_tokens) for at in batch.logits_indices.tolist())
    assert set(batch.attention.slot_mapping[fed:].tolist()) <= set(TRASH)


def check_tokens(
    tables: Tables,
    rows: list[Row],
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    at = 0
    for row in rows:
        blocks = tables.blocks(row.slot, 10)
        text = sequence(row.slot, row.num_tokens)
        for offset in range(row.known + len(row.parents)):
            place, node = row.num_computed + offset, offset - row.known
            position, token = place, 40 + node
            if node < 0:
                token = text[place]
            else:
                position = row.num_tokens - 1 + len(row.path(node))
            assert input_ids[at] == token
            assert positions[at] == position
            assert slot_mapping[at] == blocks[place // SIZE] * SIZE + place % SIZE
            at += 1


@given(rows=passes(), num_padded=st.integers(0, 3), shift=st.integers(0, 1))
def test_verified_tokens_are_fed_from_any_place_on(
    rows: list[Row], num_padded: int, shift: int
) -> None:
    tables = prepare(rows)
    slots = torch.tensor([row.slot for row in rows])
    starts = torch.tensor([row.num_computed for row in rows])
    lengths = torch.tensor([row.known for row in rows])
    number = int(lengths.sum())
    size = PassSize(number + num_padded, len(rows), 20, MAX_LEN)
    if size.num_tokens == 0:
        return
    batch, tokens = build_known_batch(
        tables.table, tables.pool, slots, starts, lengths, size, shift=shift
    )
    assert tokens.starts[-1] == number
    at = 0
    for index, row in enumerate(rows):
        text = [*sequence(row.slot, row.num_tokens), 0]
        blocks = tables.blocks(row.slot, 10)
        for place in range(row.num_computed, row.num_computed + row.known):
            assert batch.input_ids[at] == text[place + shift]
            assert batch.positions[at] == place
            assert batch.attention.slot_mapping[at] == blocks[place // SIZE] * SIZE + place % SIZE
            at += 1
        if row.known:
            assert batch.logits_indices[index] == at - 1
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
    places = tables.table.kv_places(torch.tensor([2, 2, 1, 1]), torch.tensor([5, 6, 8, 9]))
    attention = batch.attention
    assert torch.equal(attention.slot_mapping, places)
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
