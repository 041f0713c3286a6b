import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.drafts import TreeWalk

PARENTS = [-1, -1, 0, 0, 2, 1]
TOKENS = [10, 11, 10, 12, 13, 14]
"""10 (10 (13), 12), and 11 (14); elements 1 to 6 in the order of the lists."""


@pytest.mark.parametrize(("most", "ahead"), [(1, [0]), (2, [0, 1]), (9, [0, 1, 3, 5])])
def test_first_children_are_looked_at(most: int, ahead: list[int]) -> None:
    walk = TreeWalk(PARENTS, TOKENS)
    walk.look_ahead(most)
    assert walk.ahead == ahead


@given(st.data())
def test_whatever_is_looked_at_the_path_is_the_same(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 12))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(number)]
    # Different tokens for all nodes, so for siblings as well.
    tokens = [100 + node for node in range(number)]
    chosen = [data.draw(st.sampled_from([0, *tokens])) for _ in range(number + 1)]
    path, element = [0], 0
    while chosen[element] and parents[chosen[element] - 100] == element - 1:
        element = chosen[element] - 99
        path.append(element)
    walk = TreeWalk(parents, tokens)
    asked: list[int] = []
    while walk.ahead:
        walk.look_ahead(data.draw(st.integers(1, 5)))
        asked += walk.ahead
        is_through = set(walk.ahead) <= set(path)
        assert walk.follow([chosen[element] for element in walk.ahead]) == is_through
    assert set(path) <= set(asked)
    assert len(asked) == len(set(asked))
