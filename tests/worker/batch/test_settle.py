from collections.abc import Sequence

import pytest
import torch

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch import results as settle_module
from optimist_worker.core.batch.results import compact, keep_rows, move_path, settle_rows
from optimist_worker.core.batch.slot_table import FittedRows
from tests.worker.tables import MAX_LEN, Tables, make_tables

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture
def tables() -> Tables:
    tables = make_tables()
    for slot in (0, 1):
        tables.admit(slot, PROMPT, min_length=7, max_length=12, stop_token_ids=[30, 31])
    return tables


def verdict_of(
    *rows: tuple[Sequence[int], int],
    broken: Sequence[int] = (),
    path: list[list[int]] | None = None,
) -> Verdict:
    """Tokens of each row, and how many drafts were accepted."""
    width = max(len(tokens) for tokens, _ in rows)
    return Verdict(
        token_ids=torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens, _ in rows]),
        num_accepted=torch.tensor([number for _, number in rows]),
        path=None if path is None else torch.tensor(path),
        is_finite=torch.tensor([row not in broken for row in range(len(rows))]),
    )


def state(tables: Tables, slot: int) -> tuple[int, int, bool]:
    """Verified and computed tokens, and whether the request has ended."""
    columns = tables.table.gather(torch.tensor([slot]))
    return int(columns.num_tokens), int(columns.num_computed_tokens), bool(columns.has_ended)


def settle(tables: Tables, rows: FittedRows, verdict: Verdict) -> list[int]:
    settled = settle_rows(tables.table, rows, verdict)
    slots = rows.slots.tolist()
    assert settled.num_tokens.tolist() == [state(tables, slot)[0] for slot in slots]
    assert settled.has_ended.tolist() == [int(state(tables, slot)[2]) for slot in slots]
    emitted: list[int] = settled.num_emitted.tolist()
    return emitted


def test_accepted_drafts_and_the_token_after_them_are_kept(tables: Tables) -> None:
    rows = tables.fit((1, 5, 4))
    assert settle(tables, rows, verdict_of(([20, 21, 22, 9, 9], 2))) == [3]
    assert state(tables, 1) == (8, 7, False)
    assert tables.table.token_ids[1, :9].tolist() == [*PROMPT, 20, 21, 22, 0]
    # The other slot has not moved.
    assert state(tables, 0) == (5, 0, False)


def test_rejected_drafts_are_left_behind(tables: Tables) -> None:
    assert settle(tables, tables.fit((1, 5, 4)), verdict_of(([20, 9, 9, 9, 9], 0))) == [1]
    assert state(tables, 1) == (6, 5, False)
    assert settle(tables, tables.fit((1, 1, 4)), verdict_of(([21, 9, 9, 9, 9], 0))) == [1]
    assert state(tables, 1) == (7, 6, False)


def test_a_chunk_of_a_prompt_emits_nothing(tables: Tables) -> None:
    rows = tables.fit((0, 3, 4), (1, 9, 0))
    assert settle(tables, rows, verdict_of(([30, 9], 0), ([20, 9], 0))) == [0, 1]
    assert state(tables, 0) == (5, 3, False)
    assert tables.table.token_ids[0, :6].tolist() == [*PROMPT, 0]
    assert state(tables, 1) == (6, 5, False)


def test_rows_that_are_not_finite_do_not_move(tables: Tables) -> None:
    rows = tables.fit((0, 5, 2), (1, 5, 2))
    verdict = verdict_of(([30, 9, 9], 0), ([20, 21, 22], 2), broken=[0])
    assert settle(tables, rows, verdict) == [0, 3]
    assert state(tables, 0) == (5, 0, False)
    assert state(tables, 1) == (8, 7, False)


@pytest.mark.parametrize(
    ("tokens", "num_accepted", "has_ended"),
    [
        ([20, 30], 1, True),
        ([20, 31, 22], 2, True),
        # Below min_length.
        ([30, 20], 1, False),
        ([30, 20, 30], 2, True),
        # Not emitted.
        ([20, 21, 30], 1, False),
        ([20, 21, 22], 2, False),
    ],
)
def test_stop_tokens_end_a_request(
    tables: Tables, tokens: list[int], num_accepted: int, has_ended: bool
) -> None:
    rows = tables.fit((1, 5, 4))
    # What was accepted after a stop token is still reported.
    assert settle(tables, rows, verdict_of((tokens, num_accepted))) == [num_accepted + 1]
    assert state(tables, 1)[2] == has_ended


def test_a_request_ends_at_its_length(tables: Tables) -> None:
    settle(tables, tables.fit((1, 5, 9)), verdict_of(([20] * 6, 5)))
    assert state(tables, 1) == (11, 10, False)
    settle(tables, tables.fit((1, 1, 9)), verdict_of(([20], 0)))
    assert state(tables, 1) == (12, 11, True)


def test_an_ended_request_stays_ended(tables: Tables) -> None:
    settle(tables, tables.fit((1, 5, 1)), verdict_of(([20, 30], 1)))
    before = state(tables, 1)
    assert settle(tables, tables.fit((1, 1, 3)), verdict_of(([20, 21], 1))) == [0]
    assert state(tables, 1) == before == (7, 6, True)


def test_a_sequence_may_fill_the_table() -> None:
    tables = make_tables()
    tables.admit(1, [1] * (MAX_LEN - 1))
    rows = tables.fit((1, MAX_LEN - 1, 5))
    # The row of tokens is as wide as others need it.
    assert settle(tables, rows, verdict_of(([20, 9, 9, 9], 0))) == [1]
    assert tables.table.token_ids[1].tolist() == [1] * (MAX_LEN - 1) + [20]
    assert state(tables, 1) == (MAX_LEN, MAX_LEN - 1, True)


def test_padding_changes_nothing(tables: Tables) -> None:
    before = tables.table.columns.clone()
    tokens = tables.table.token_ids[:-1].clone()
    rows = tables.fit((4, 0, 0), (4, 0, 0))
    assert settle(tables, rows, verdict_of(([20, 21], 1), ([22, 23], 0))) == [0, 0]
    assert torch.equal(tables.table.columns, before)
    assert torch.equal(tables.table.token_ids[:-1], tokens)


def test_a_pass_that_did_not_take_place_keeps_everything(tables: Tables) -> None:
    rows = tables.fit((1, 5, 2), (0, 2, 0))
    kept = keep_rows(rows)
    assert kept.num_emitted.tolist() == [0, 0]
    assert kept.num_tokens.tolist() == [5, 5]
    assert kept.has_ended.tolist() == [0, 0]


def contents(tables: Tables, slot: int, wanted: list[int]) -> torch.Tensor:
    places = tables.table.kv_places(torch.full((len(wanted),), slot), torch.tensor(wanted))
    pool = tables.pool
    return torch.stack([memory[places] for memory in (*pool.keys, *pool.values)])


def test_the_accepted_path_becomes_consecutive(tables: Tables) -> None:
    rows = tables.fit((0, 5, 6), (1, 5, 6))
    # The trees lie at places 5 to 10, in two blocks; nodes 1, 4 and 5 of the second one are kept.
    kept = contents(tables, 1, [6, 9, 10])
    others = contents(tables, 1, [*range(5), *range(8, 12)])
    first = contents(tables, 0, [*range(12)])
    verdict = verdict_of(
        ([20] * 7, 0), ([20] * 7, 3), path=[[3, 4, 5, 0, 0, 0], [1, 4, 5, 0, 0, 0]]
    )
    compact(tables.table, tables.pool, rows, verdict)
    assert torch.equal(contents(tables, 1, [5, 6, 7]), kept)
    assert torch.equal(contents(tables, 1, [*range(5), *range(8, 12)]), others)
    assert torch.equal(contents(tables, 0, [*range(12)]), first)


def test_the_first_nodes_of_a_tree_need_not_be_moved(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tables.fit((0, 5, 6), (1, 5, 6))
    path = [[0, 1, 2, 0, 0, 0], [3, 1, 0, 0, 0, 0]]
    verdict = verdict_of(([20] * 7, 3), ([20] * 7, 0), path=path)
    before = contents(tables, 0, [*range(12)]), contents(tables, 1, [*range(12)])
    moved = []
    monkeypatch.setattr(settle_module, "move_path", lambda *parts: moved.append(parts))
    compact(tables.table, tables.pool, rows, verdict)
    assert moved == []
    monkeypatch.undo()
    # It is the same where nobody looks.
    monkeypatch.setattr(tables.table, "reads_sizes", False)
    compact(tables.table, tables.pool, rows, verdict)
    for slot in (0, 1):
        assert torch.equal(contents(tables, slot, [*range(12)]), before[slot])


def test_chains_need_not_be_moved(tables: Tables) -> None:
    rows = tables.fit((1, 5, 6))
    before = contents(tables, 1, [*range(12)])
    compact(tables.table, tables.pool, rows, verdict_of(([20] * 7, 6)))
    assert torch.equal(contents(tables, 1, [*range(12)]), before)


def test_nodes_may_be_moved_onto_places_that_are_read(tables: Tables) -> None:
    before = contents(tables, 1, [1, 2, 3])
    index = torch.tensor([1])
    path = torch.tensor([[1, 2, 3, 4]])
    move_path(tables.table, tables.pool, index, torch.tensor([0]), path, torch.tensor([3]))
    assert torch.equal(contents(tables, 1, [0, 1, 2]), before)
