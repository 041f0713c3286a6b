"""Trees of drafts, walks down them, and rows of several lengths, against lists."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.drafts import (
    Drafts,
    ancestor_bits,
    ancestor_matrix,
    chain_parents,
    lay_out,
    no_drafts,
    node_depths,
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


def test_the_last_of_64_nodes_is_the_sign() -> None:
    bits = ancestor_bits(chain_parents(1, 64, CPU))
    assert bits[0, 63] == -1
    assert bits[0, 62] == 2**63 - 1


def test_only_nodes_make_a_tree() -> None:
    parents = torch.tensor([[-1, 0, 1, 2], [-1, 0, 1, 0], [-1, -1, 0, 2]])
    for number, is_tree in (([4, 4, 4], [False, True, True]), ([4, 3, 1], [False] * 3)):
        drafts = Drafts(torch.zeros(3, 4), torch.tensor(number), torch.zeros(3), parents)
        assert drafts.is_tree.tolist() == is_tree
    assert no_drafts(2, CPU).is_tree.tolist() == [False, False]


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
