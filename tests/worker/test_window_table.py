import pytest
import torch

from optimist_common.draft_source import DraftSource
from optimist_worker.core.plan import MOST_ALTERNATIVES, Alternative, WindowUpdate
from tests.worker.tables import MAX_LEN, VOCAB, Tables, make_tables

PROMPT = [1, 2, 3]
WINDOW = [11, 12, 13, 14, 15, 16]


@pytest.fixture
def tables() -> Tables:
    tables = make_tables()
    tables.admit(1, PROMPT)
    return tables


def drafts(tables: Tables, limit: int = 20) -> list[int]:
    """What is drafted for slot 1."""
    slots = torch.tensor([1])
    columns = tables.table.gather(slots)
    found = tables.windows.draft(slots, columns, torch.tensor([limit]), limit)
    number = int(found.num_tokens)
    source = DraftSource.PREDICTION if number else DraftSource.TARGET
    assert found.sources.tolist() == [source]
    assert int(tables.windows.count_left(slots, columns.num_tokens)) >= number
    tokens: list[int] = found.token_ids[0, :number].tolist()
    return tokens


def set_window(
    tables: Tables, tokens: list[int], base: int = 0, *alternatives: tuple[int, list[int]]
) -> None:
    parts = [Alternative(offset, text) for offset, text in alternatives]
    tables.windows.set(WindowUpdate(1, base, tokens, parts))


def test_drafts_are_what_the_window_has_ahead(tables: Tables) -> None:
    assert drafts(tables) == []
    set_window(tables, WINDOW)
    assert drafts(tables) == WINDOW
    assert drafts(tables, 2) == WINDOW[:2]
    tables.emit(1, [11, 12])
    assert drafts(tables) == WINDOW[2:]
    tables.emit(1, WINDOW[2:])
    assert drafts(tables) == []


def test_a_contradicted_window_has_nothing_left(tables: Tables) -> None:
    set_window(tables, WINDOW)
    tables.emit(1, [11, 40])
    assert drafts(tables) == []
    # What is emitted later cannot bring it back.
    tables.emit(1, [13])
    assert drafts(tables) == []


def test_tokens_behind_the_window_do_not_contradict_it(tables: Tables) -> None:
    set_window(tables, WINDOW[:2])
    tables.emit(1, [11, 12, 40])
    assert drafts(tables) == []
    set_window(tables, WINDOW, 3)
    assert drafts(tables) == WINDOW


@pytest.mark.parametrize(
    ("base", "tokens", "expected"),
    [
        (0, [20, 21, 22, 23], [22, 23]),
        (1, [21, 22, 23], [22, 23]),
        (2, [22, 23], [22, 23]),
        (0, [20, 22, 22, 23], []),
        (3, [23], []),
        (0, [20, 21], []),
        (0, [], []),
    ],
)
def test_a_window_that_was_made_before_is_compared_with_the_output(
    tables: Tables, base: int, tokens: list[int], expected: list[int]
) -> None:
    tables.emit(1, [20, 21])
    set_window(tables, tokens, base)
    assert drafts(tables) == expected


@pytest.mark.parametrize("outside", [-1, VOCAB, 2**31 - 1])
def test_windows_with_tokens_outside_of_the_vocabulary_are_no_windows(
    tables: Tables, outside: int
) -> None:
    set_window(tables, WINDOW)
    set_window(tables, [11, outside, 12])
    assert drafts(tables) == []
    set_window(tables, WINDOW, 0, (2, [outside]), (1, [30]))
    assert drafts(tables) == WINDOW
    tables.emit(1, [11, 30])
    assert drafts(tables) == []


def test_a_window_ends_with_the_longest_sequence(tables: Tables) -> None:
    tokens = [10 + i % 30 for i in range(MAX_LEN + 9)]
    set_window(tables, tokens)
    assert drafts(tables, 60) == tokens[: MAX_LEN - 3]
    set_window(tables, tokens, MAX_LEN + 5)
    assert drafts(tables, 60) == []


def test_a_new_window_replaces_the_old_one_and_its_alternatives(tables: Tables) -> None:
    set_window(tables, WINDOW, 0, (1, [30, 31]))
    set_window(tables, [41, 42])
    assert drafts(tables) == [41, 42]
    tables.emit(1, [11, 30])
    assert drafts(tables) == []


def test_admission_and_clearing_forget_the_window(tables: Tables) -> None:
    set_window(tables, WINDOW, 0, (1, [30, 31]))
    tables.admit(1, PROMPT)
    assert drafts(tables) == []
    tables.emit(1, [11, 30])
    assert drafts(tables) == []


def test_windows_of_other_slots_stay(tables: Tables) -> None:
    tables.admit(2, PROMPT)
    set_window(tables, WINDOW)
    tables.windows.set(WindowUpdate(2, 0, [44]))
    tables.emit(2, [45])
    assert drafts(tables) == WINDOW


def test_an_alternative_that_comes_true_becomes_the_window(tables: Tables) -> None:
    set_window(tables, WINDOW, 0, (1, [20, 21]), (2, [30, 31, 32]), (2, [35]))
    tables.emit(1, [11, 12])
    assert drafts(tables) == WINDOW[2:]
    tables.emit(1, [30])
    assert drafts(tables) == [31, 32]
    tables.emit(1, [31, 40])
    assert drafts(tables) == []


def test_the_likeliest_alternative_that_comes_true_is_followed(tables: Tables) -> None:
    set_window(tables, WINDOW, 0, (1, [20, 21]), (1, [20, 22, 23]))
    tables.emit(1, [11, 20])
    assert drafts(tables) == [21]


def test_an_alternative_is_dropped_with_the_text_before_it(tables: Tables) -> None:
    set_window(tables, WINDOW, 0, (2, [30, 31]))
    tables.emit(1, [11, 40])
    assert drafts(tables) == []
    tables.emit(1, [30])
    assert drafts(tables) == []


def test_an_alternative_may_come_true_before_the_window_arrives(tables: Tables) -> None:
    tables.emit(1, [11, 30])
    set_window(tables, WINDOW, 0, (1, [30, 31, 32]))
    assert drafts(tables) == [31, 32]


def test_an_alternative_may_begin_where_the_window_ends(tables: Tables) -> None:
    set_window(tables, WINDOW[:2], 0, (2, [30, 31]))
    tables.emit(1, WINDOW[:2])
    assert drafts(tables) == [30, 31]


def test_more_alternatives_than_there_is_room_for_are_left_out(tables: Tables) -> None:
    many = [(1, [20 + i, 5]) for i in range(MOST_ALTERNATIVES + 1)]
    set_window(tables, WINDOW, 0, *many)
    tables.emit(1, [11, many[-1][1][0]])
    assert drafts(tables) == []


def test_padding_may_name_the_last_row_several_times(tables: Tables) -> None:
    set_window(tables, WINDOW, 0, (1, [30]))
    slots = torch.tensor([4, 1, 4])
    emitted = torch.tensor([[9, 9], [11, 0], [8, 8]])
    columns = tables.table.gather(slots)
    tables.windows.follow(slots, columns.num_tokens, emitted, torch.tensor([0, 1, 0]))
    tables.table.store(torch.tensor([1]), num_tokens=torch.tensor([4]))
    assert drafts(tables) == WINDOW[1:]
