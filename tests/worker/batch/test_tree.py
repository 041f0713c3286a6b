import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.drafts import (
    Drafts,
    ancestor_bits,
    ancestor_matrix,
    chain_parents,
    holds_from_top,
    no_drafts,
    node_depths,
    nodes_by_depth,
    sibling_ranks,
)

CPU = torch.device("cpu")


@st.composite
def forests(draw: st.DrawFn, max_nodes: int = 20) -> list[list[int]]:
    """Rows of parents, all of one length."""
    num_nodes = draw(st.integers(0, max_nodes))
    rows = draw(st.integers(1, 4))
    return [[draw(st.integers(-1, i - 1)) for i in range(num_nodes)] for _ in range(rows)]


def path_to(parents: list[int], node: int) -> list[int]:
    """The nodes from the top down to a node, followed one by one."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tensor_of(forest: list[list[int]]) -> torch.Tensor:
    return torch.tensor(forest, dtype=torch.int64).reshape(len(forest), -1)


@given(forests())
def test_depths_and_ancestors_are_those_of_the_path(forest: list[list[int]]) -> None:
    parents = tensor_of(forest)
    depths, bits, matrix = node_depths(parents), ancestor_bits(parents), ancestor_matrix(parents)
    assert not matrix[:, 0].any()
    for row, row_parents in enumerate(forest):
        for node in range(len(row_parents)):
            path = path_to(row_parents, node)
            assert depths[row, node] == len(path)
            assert bits[row, node] == sum(1 << i for i in path)
            assert matrix[row, 1 + node].nonzero().flatten().tolist() == path


@given(forests(), st.data())
def test_a_flag_holds_from_the_top_if_it_holds_all_the_way(
    forest: list[list[int]], data: st.DataObject
) -> None:
    flags = [[data.draw(st.booleans()) for _ in row] for row in forest]
    tensor = torch.tensor(flags, dtype=torch.bool).reshape(len(forest), -1)
    held = holds_from_top(tensor, tensor_of(forest))
    for row, row_parents in enumerate(forest):
        expected = [
            all(flags[row][i] for i in path_to(row_parents, node))
            for node in range(len(row_parents))
        ]
        assert held[row].tolist() == expected


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3))
def test_chains_need_no_parents(flags: list[list[bool]]) -> None:
    tensor = torch.tensor(flags)
    parents = chain_parents(len(flags), 9, CPU)
    assert torch.equal(holds_from_top(tensor, None), holds_from_top(tensor, parents))
    assert node_depths(parents)[0].tolist() == list(range(1, 10))


@given(forests())
def test_ranks_count_the_siblings_before(forest: list[list[int]]) -> None:
    ranks = sibling_ranks(tensor_of(forest))
    for row, parents in enumerate(forest):
        assert ranks[row].tolist() == [parents[:i].count(p) for i, p in enumerate(parents)]


@given(forests(), st.data())
def test_a_path_is_listed_from_the_top_down(forest: list[list[int]], data: st.DataObject) -> None:
    parents = tensor_of(forest)
    num_nodes = parents.shape[1]
    paths = [
        path_to(row, data.draw(st.integers(-1, num_nodes - 1)) if row else -1) for row in forest
    ]
    chosen = torch.zeros_like(parents, dtype=torch.bool)
    for row, path in enumerate(paths):
        chosen[row, path] = True
    listed = nodes_by_depth(chosen, node_depths(parents))
    assert listed.tolist() == [path + [0] * (num_nodes - len(path)) for path in paths]


def test_the_last_of_64_nodes_is_the_sign() -> None:
    bits = ancestor_bits(chain_parents(1, 64, CPU))
    assert bits[0, 63] == -1
    assert bits[0, 62] == 2**63 - 1


@pytest.mark.parametrize("num_rows", [0, 3])
def test_there_may_be_no_drafts(num_rows: int) -> None:
    drafts = no_drafts(num_rows, CPU)
    assert (drafts.num_rows, drafts.width) == (num_rows, 0)
    assert drafts.is_node.shape == (num_rows, 0)
    parents = chain_parents(num_rows, 0, CPU)
    assert node_depths(parents).shape == ancestor_bits(parents).shape == (num_rows, 0)
    assert ancestor_matrix(parents).shape == (num_rows, 1, 0)


def test_padding_is_no_node() -> None:
    zeros = torch.zeros(2, dtype=torch.int64)
    drafts = Drafts(torch.zeros((2, 3), dtype=torch.int64), torch.tensor([1, 3]), zeros)
    assert drafts.is_node.tolist() == [[True, False, False], [True, True, True]]
