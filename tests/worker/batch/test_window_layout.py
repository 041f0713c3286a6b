import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.batch.window_table import (
    FIRST_NODE,
    NOWHERE,
    NUM_PLACES,
    ROOT_PLACE,
    lay_out_window,
)
from optimist_worker.core.plan import MOST_WINDOW_NODES, WindowUpdate

VOCAB = 50


def places(tokens: list[int], parents: list[int]) -> list[tuple[int, int, int, int, int]]:
    """Parent place, token, number, last number and depth of every node."""
    layout = lay_out_window(WindowUpdate(0, 0, tokens, parents), VOCAB)
    assert layout.shape == (4, NUM_PLACES)
    is_used = layout[0] > 0
    assert not layout[:3, NOWHERE].any()
    assert not layout[:3, FIRST_NODE:][:, ~is_used[FIRST_NODE:]].any()
    number = int(is_used.sum())
    assert layout[:, ROOT_PLACE].tolist() == [0, 0, number, 0]
    # Whatever is not in use has a depth that no output has.
    assert (layout[3] < -(2**32)).sum() == NUM_PLACES - 1 - number
    keys, *others = layout[:, is_used].tolist()
    parts = [[key // VOCAB for key in keys], [key % VOCAB for key in keys], *others]
    return list(zip(*parts, strict=True))


@pytest.mark.parametrize("parents", [[], [-1, 0, 1]])
def test_a_chain_is_numbered_in_its_order(parents: list[int]) -> None:
    expected = [(1, 7, 1, 3, 1), (2, 8, 2, 3, 2), (3, 0, 3, 3, 3)]
    assert places([7, 8, 0], parents) == expected


def test_all_that_comes_behind_a_node_is_one_span() -> None:
    found = places([7, 8, 9, 10, 11, 12], [-1, -1, 0, 1, 0, 2])
    assert found == [
        *[(1, 7, 1, 4, 1), (1, 8, 5, 6, 1), (2, 9, 2, 3, 2)],
        *[(3, 10, 6, 6, 2), (2, 11, 4, 4, 2), (4, 12, 3, 3, 3)],
    ]


@pytest.mark.parametrize("outside", [-1, VOCAB, 2**31 - 1, -(2**31)])
def test_tokens_outside_of_the_vocabulary_are_left_out(outside: int) -> None:
    assert [place[1] for place in places([7, outside, 9], [])] == [7]
    assert places([outside], []) == places([], []) == []
    found = places([7, outside, 9, 8, 4], [-1, 0, 1, 0, 3])
    # The others keep their places.
    assert found == [(1, 7, 1, 3, 1), (2, 8, 2, 3, 2), (5, 4, 3, 3, 3)]


def test_siblings_have_different_tokens() -> None:
    found = places([7, 7, 8, 8, 7], [-1, -1, 0, 1, 2])
    assert [place[:2] for place in found] == [(1, 7), (2, 8), (4, 7)]


def test_a_window_may_be_full() -> None:
    tokens = [i % VOCAB for i in range(MOST_WINDOW_NODES)]
    assert len(places(tokens, [])) == MOST_WINDOW_NODES
    assert len(places(tokens, [max(-1, i - VOCAB) for i in range(MOST_WINDOW_NODES)])) == (
        MOST_WINDOW_NODES
    )


@given(st.data())
def test_spans_tell_who_is_behind_whom(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 30))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(number)]
    found = places(list(range(number)), parents)
    assert sorted(place[2] for place in found) == list(range(1, number + 1))
    ancestors: list[set[int]] = []
    for node, parent in enumerate(parents):
        ancestors.append({node} | (ancestors[parent] if parent >= 0 else set()))
        assert found[node][4] == len(ancestors[node])
    for node, place in enumerate(found):
        behind = {other for other in range(number) if node in ancestors[other]}
        assert {found[other][2] for other in behind} == set(range(place[2], place[3] + 1))
