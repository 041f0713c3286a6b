import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.draft_source import DraftSource
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.flat_batch import MOST_TREE_NODES
from optimist_worker.core.plan import Alternative, WindowUpdate
from optimist_worker.core.window_table import MOST_ALTERNATIVE_NODES
from optimist_worker.core.window_tree import draft_windows
from tests.worker.tables import MAX_LEN, VOCAB, Tables, make_tables

WINDOW = [11, 12, 13, 14, 15, 16]
Text = tuple[int, list[int]]


def tables_with(tokens: list[int], *alternatives: Text, num_emitted: int = 0) -> Tables:
    """Slot 1 has a window, and has followed it for some tokens; slot 2 has none."""
    tables = make_tables()
    tables.admit(1, [1, 2, 3])
    tables.admit(2, [1, 2])
    parts = [Alternative(offset, text) for offset, text in alternatives]
    tables.windows.set(WindowUpdate(1, 0, tokens, parts))
    if num_emitted:
        tables.emit(1, tokens[:num_emitted])
    return tables


def draft(tables: Tables, *limits: int) -> Drafts:
    slots = torch.arange(1, 1 + len(limits))
    columns = tables.table.gather(slots)
    return draft_windows(tables.windows, slots, columns, torch.tensor(limits), max(1, *limits, 0))


def tree(drafts: Drafts, row: int = 0) -> list[tuple[int, int]]:
    """Token and parent of every node."""
    number = int(drafts.num_tokens[row])
    assert drafts.parents is not None
    return list(
        zip(
            drafts.token_ids[row, :number].tolist(),
            drafts.parents[row, :number].tolist(),
            strict=True,
        )
    )


def test_without_alternatives_there_is_a_chain() -> None:
    drafts = draft(tables_with(WINDOW), 4)
    assert (drafts.parents, drafts.max_siblings) == (None, 1)
    assert drafts.token_ids[0].tolist() == WINDOW[:4]


def test_an_alternative_is_a_branch() -> None:
    drafts = draft(tables_with(WINDOW[:3], (1, [20, 21])), 9)
    assert tree(drafts) == [(11, -1), (12, 0), (13, 1), (20, 0), (21, 3)]
    assert drafts.sources.tolist() == [DraftSource.PREDICTION]
    assert drafts.max_siblings > 1


def test_an_alternative_may_depart_at_once() -> None:
    drafts = draft(tables_with(WINDOW, (2, [20, 21]), num_emitted=2), 6)
    assert tree(drafts) == [(13, -1), (14, 0), (15, 1), (16, 2), (20, -1), (21, 4)]


def test_alternatives_get_half_of_the_drafts_and_likely_ones_first() -> None:
    tables = tables_with(WINDOW, (1, [20, 21, 22]), (2, [30, 31, 32]))
    assert tree(draft(tables, 8)) == [
        *[(11, -1), (12, 0), (13, 1), (14, 2)],
        *[(20, 0), (21, 4), (22, 5), (30, 1)],
    ]
    assert tree(draft(tables, 3)) == [(11, -1), (12, 0), (20, 0)]
    assert tree(draft(tables, 1)) == [(11, -1)]
    assert tree(draft(tables, 0)) == []


def test_a_branch_begins_on_the_window_or_not_at_all() -> None:
    # With four drafts the window is cut to two of them.
    tables = tables_with(WINDOW, (1, [20]), (5, [30]))
    assert tree(draft(tables, 4)) == [(11, -1), (12, 0), (13, 1), (20, 0)]
    assert tree(draft(tables_with(WINDOW, (6, [30])), 20))[-1] == (30, 5)
    far = tables_with([11] * 30, (29, [30]))
    assert tree(draft(far, 2)) == [(11, -1), (11, 0)]


def test_twins_are_drafted_once() -> None:
    tables = tables_with(WINDOW, (1, [12, 30]), (1, [20, 21]), (1, [20, 22]))
    assert tree(draft(tables, 20))[6:] == [(20, 0), (21, 6)]


def test_a_long_alternative_is_cut() -> None:
    tables = tables_with(WINDOW, (0, [20] + [21] * 20))
    assert len(tree(draft(tables, 40))) == len(WINDOW) + MOST_ALTERNATIVE_NODES


def test_a_tree_has_a_bit_for_every_node() -> None:
    tables = make_tables()
    tables.admit(1, [1])
    text = [i % VOCAB for i in range(MAX_LEN)]
    tables.windows.set(WindowUpdate(1, 0, text, [Alternative(0, [40] * 9)]))
    nodes = tree(draft(tables, 3 * MOST_TREE_NODES))
    assert len(nodes) <= MOST_TREE_NODES


def test_rows_without_alternatives_stay_chains() -> None:
    tables = tables_with(WINDOW, (1, [20, 21]))
    tables.windows.set(WindowUpdate(2, 0, [31, 32, 33]))
    drafts = draft(tables, 4, 2)
    assert tree(drafts, 1) == [(31, -1), (32, 0)]


TEXTS = st.lists(st.integers(10, 14), max_size=12)


@given(
    window=TEXTS,
    alternatives=st.lists(st.tuples(st.integers(0, 14), TEXTS), max_size=4),
    num_emitted=st.integers(0, 6),
    limits=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_any_window_gives_a_tree_of_its_texts(
    window: list[int], alternatives: list[Text], num_emitted: int, limits: tuple[int, int]
) -> None:
    num_emitted = min(num_emitted, len(window))
    tables = tables_with(window, *alternatives, num_emitted=num_emitted)
    if not tables.windows.has_alternatives:
        return
    drafts = draft(tables, *limits)
    assert drafts.parents is not None
    assert int(drafts.parents.min()) >= -1
    assert int(drafts.parents.max()) < drafts.width
    nodes = tree(drafts)
    assert len(nodes) <= limits[0]
    assert tree(drafts, 1) == []
    assert len(set(nodes)) == len(nodes), "siblings have the same token"
    texts = [window] + [window[:offset] + text for offset, text in alternatives]
    paths: list[list[int]] = []
    for index, (token, parent) in enumerate(nodes):
        assert parent < index
        paths.append([*(paths[parent] if parent >= 0 else []), token])
        said = window[:num_emitted] + paths[-1]
        assert any(text[: len(said)] == said for text in texts)
    if window[num_emitted:] and limits[0]:
        assert paths[0] == window[num_emitted : num_emitted + 1]


@pytest.mark.parametrize("limit", [1, 5, 12])
def test_a_smaller_quota_keeps_the_window_first(limit: int) -> None:
    nodes = tree(draft(tables_with(WINDOW, (1, [20] * 8), (3, [30] * 8)), limit))
    num_main = sum(token in WINDOW for token, _ in nodes)
    assert num_main >= min(len(WINDOW), limit - limit // 2)
