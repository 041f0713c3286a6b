"""Trees of drafts and rows of several lengths as tensors, against lists."""

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
    lay_out,
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


DRAFTED = [[-1, 0, 1, 2], [-1, 0, 1, 0], [-1, -1, 0, 2]]


def trees(number: list[int]) -> Drafts:
    zeros = torch.zeros(len(number), dtype=torch.int64)
    tokens = torch.arange(4 * len(number)).view(-1, 4)
    parents = torch.tensor(DRAFTED[: len(number)])
    probabilities = torch.rand(len(number), 4, 5)
    return Drafts(tokens, torch.tensor(number), zeros, parents, probabilities=probabilities)


def test_depths_are_counted_from_the_top() -> None:
    assert trees([4, 4, 4]).depths.tolist() == [[1, 2, 3, 4], [1, 2, 3, 2], [1, 1, 2, 3]]
    chain = Drafts(torch.zeros(2, 3).long(), torch.tensor([3, 1]), torch.zeros(2).long())
    assert chain.depths.tolist() == [[1, 2, 3]] * 2
    assert no_drafts(2, torch.device("cpu")).depths.shape == (2, 0)


def test_only_nodes_make_a_tree() -> None:
    assert trees([4, 4, 4]).is_tree.tolist() == [False, True, True]
    assert trees([4, 3, 1]).is_tree.tolist() == [False, False, False]
    assert no_drafts(2, torch.device("cpu")).is_tree.tolist() == [False, False]


def test_what_is_after_the_widest_row_is_left_out() -> None:
    drafts = trees([2, 3, 1])
    assert drafts.trim(4) is drafts
    assert drafts.depths.shape == (3, 4)
    trimmed = drafts.trim(3)
    assert trimmed.token_ids.tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    assert trimmed.parents is not None
    assert trimmed.parents.tolist() == [parents[:3] for parents in DRAFTED]
    assert trimmed.probabilities is not None
    assert trimmed.probabilities.shape == (3, 3, 5)
    assert trimmed.depths.shape == (3, 3)
    chain = Drafts(torch.zeros(2, 3).long(), torch.tensor([1, 0]), torch.zeros(2).long())
    assert (chain.trim(1).width, chain.trim(1).parents) == (1, None)


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8), num_padded=st.integers(0, 4))
def test_elements_belong_to_their_rows(lengths: list[int], num_padded: int) -> None:
    size = sum(lengths) + num_padded
    ragged = lay_out(torch.tensor(lengths), size)
    elements = [(row, i) for row, length in enumerate(lengths) for i in range(length)]
    number = len(elements)
    assert ragged.size == size
    assert ragged.starts.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    found = zip(ragged.rows.tolist(), ragged.offsets.tolist(), strict=True)
    assert list(found)[:number] == elements
    assert ragged.is_real.tolist() == [True] * number + [False] * num_padded
    # Padding is a valid index nevertheless.
    assert all(0 <= row < len(lengths) for row in ragged.rows.tolist())
    assert ragged.offsets[number:].tolist() == [0] * num_padded
    assert ragged.is_exact == (num_padded == 0)


@pytest.mark.parametrize("size", [0, 3])
def test_there_may_be_padding_alone(size: int) -> None:
    ragged = lay_out(torch.tensor([0, 0]), size)
    assert ragged.is_real.tolist() == [False] * size
    assert ragged.starts.tolist() == [0, 0, 0]
