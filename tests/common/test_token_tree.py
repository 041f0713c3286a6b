"""Drafts: trees of tokens, compared with the sets of their paths, and the sources of drafts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist.common.v1 import draft_source_pb2
from optimist_common.drafts import ROOT, DraftSource, TokenTree
from optimist_common.observing.metrics import NUM_POSITIONS, DraftMetrics

Path = tuple[int, ...]
FEW_TOKENS = st.integers(0, 2)


def tree_of(token_ids: list[int], parents: list[int]) -> TokenTree:
    return TokenTree.from_columns(np.array(token_ids, np.int32), np.array(parents, np.int32))


def paths_of(tree: TokenTree) -> list[Path]:
    """Returns the tokens that lead to each node, and last to the root."""
    paths: list[Path] = [()] * (len(tree) + 1)
    for node, (token, parent) in enumerate(
        zip(tree.token_ids.tolist(), tree.list_parents(), strict=True)
    ):
        paths[node] = (*paths[parent], token)
    return paths


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Trees without equal siblings, chains among them."""
    if draw(st.booleans()):
        return TokenTree(np.array(draw(st.lists(FEW_TOKENS, max_size=10)), np.int32))
    nodes: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 14))):
        node = draw(st.integers(ROOT, len(nodes) - 1)), draw(FEW_TOKENS)
        if node not in nodes:
            nodes.append(node)
    return tree_of([token for _, token in nodes], [parent for parent, _ in nodes])


@given(tree=trees(), data=st.data())
def test_walk_passes_the_nodes_of_the_longest_common_path(
    tree: TokenTree, data: st.DataObject
) -> None:
    paths = paths_of(tree)
    start = data.draw(st.integers(ROOT, len(tree) - 1))
    token_ids = data.draw(st.lists(FEW_TOKENS, max_size=8))
    walked = tree.walk(token_ids, start)
    on_the_way = [paths[start] + tuple(token_ids[:end]) for end in range(len(token_ids) + 1)]
    assert [paths[node] for node in walked] == [path for path in on_the_way[1:] if path in paths]


@given(tree=trees(), data=st.data())
def test_any_beginning_of_a_subtree_holds_what_goes_on_after_a_node(
    tree: TokenTree, data: st.DataObject
) -> None:
    paths = paths_of(tree)
    start = data.draw(st.integers(ROOT, len(tree) - 1))
    nodes, prefix = tree.find_subtree(start), paths[start]
    expected = [
        path[len(prefix) :]
        for path in paths[:-1]
        if len(path) > len(prefix) and path[: len(prefix)] == prefix
    ]
    assert len(nodes) == len(expected)
    number = data.draw(st.integers(0, len(nodes)))
    assert paths_of(tree.select(nodes[:number])) == [*expected[:number], ()]


@given(tree=trees())
def test_depths_and_the_likeliest_path_are_those_of_the_nodes(tree: TokenTree) -> None:
    assert tree.count_depths().tolist() == [len(path) for path in paths_of(tree)[:-1]]
    is_chain = list(tree.list_parents()) == list(range(-1, len(tree) - 1))
    assert (tree.parents is None) == is_chain
    assert tree.find_fault() is None
    node, expected = ROOT, list[int]()
    parents = list(tree.list_parents())
    while node in parents:
        node = parents.index(node)
        expected.append(node)
    assert tree.find_likeliest_path().tolist() == expected


@pytest.mark.parametrize(
    ("parents", "fault"),
    [
        ([-1, -1], "parents: 2 of 3 nodes"),
        ([-1, 0], "parents: 2 of 3 nodes"),
        ([-1, 0, -2], "parents: -2 is not in -1 to 1"),
        ([-1, 1, 0], "parents: 1 is not in -1 to 0"),
        ([0, 0, 1], "parents: 0 is not in -1 to -1"),
        ([-1, 0, 0], "parents: siblings have the same token"),
    ],
)
def test_faults_name_the_node(parents: list[int], fault: str) -> None:
    tree = tree_of([5, 6, 6], parents)
    assert tree.find_fault() == fault
    assert (tree.find_fault(allows_twins=True) is None) == ("siblings" in fault)


def test_totals_are_those_of_all_sources() -> None:
    metrics = DraftMetrics("test_totals")
    sources = [DraftSource.PREDICTION, DraftSource.NGRAM, DraftSource.TARGET]
    metrics.observe(*np.array([sources, [30, 4, 0], [20, 1, 0], [21, 2, 1]], np.int32))
    metrics.observe(*np.array([sources[:1], [3], [0], [1]], np.int32))
    totals = metrics.totals
    assert (totals.num_rows, totals.num_drafted, totals.num_accepted) == (3, 37, 21)
    # Those after the last position are not counted one by one.
    assert totals.num_accepted_at == [2, *[1] * (NUM_POSITIONS - 1)]


def test_numbers_of_draft_sources_are_those_of_the_contract() -> None:
    names: dict[int, str] = {source: source.name for source in DraftSource}
    names[0] = "UNSPECIFIED"
    contract = draft_source_pb2.DraftSource.items()
    assert dict(contract) == {f"DRAFT_SOURCE_{name}": int(n) for n, name in names.items()}
