"""Drafts are walked, measured and packed node by node."""

from array import array

from optimist_aligner.drafting.draft import FLOAT32, NO_PARENT, Draft
from optimist_aligner.text.sources import INT32

#  7 - 8 - 9
#    \ 6
#  5
TREE = Draft(
    array(INT32, [7, 8, 5, 6, 9]),
    array(INT32, [-1, 0, -1, 0, 1]),
    array(INT32, [0, 1, -1, -2, 2]),
    array(FLOAT32, [0.5, 0.25, 0.25, 0.125, 0.125]),
)
CHAIN = Draft(
    array(INT32, [7, 1 << 20]),
    array(INT32, [-1, 0]),
    array(INT32, [-1, -2]),
    array(FLOAT32, [1.0, 0.5]),
)


def test_tokens_lead_as_far_as_they_are_nodes() -> None:
    assert TREE.walk(array(INT32, [7, 8, 9]), NO_PARENT) == (4, 3)
    assert TREE.walk(array(INT32, [7, 9]), NO_PARENT) == (0, 1)
    assert TREE.walk(array(INT32, [6, 1]), 0) == (3, 1)
    assert TREE.walk(array(INT32), 2) == (2, 0)


def test_height_is_that_of_the_longest_path_after_a_node() -> None:
    assert [TREE.find_height(node) for node in range(NO_PARENT, 5)] == [3, 2, 1, 0, 0, 0]
    assert Draft().find_height(NO_PARENT) == 0


def test_chain_is_packed_without_parents() -> None:
    assert [TREE.is_chain, CHAIN.is_chain, Draft().is_chain] == [False, True, True]
    values = bytes.fromhex("0000803f 0000003f")
    tokens, positions = bytes.fromhex("07000000 00001000"), bytes.fromhex("ffffffff feffffff")
    assert CHAIN.pack() == (tokens, b"", positions, values)
    assert Draft().pack() == (b"",) * 4
    columns = (TREE.token_ids, TREE.parents, TREE.positions, TREE.values)
    assert [len(column) for column in TREE.pack()] == [4 * len(column) for column in columns]
    assert TREE.pack()[1] == bytes.fromhex("ffffffff 00000000 ffffffff 00000000 01000000")
