"""What an output is expected to go on with."""

from array import array
from dataclasses import dataclass, field
from sys import byteorder
from typing import Final

from librt.strings import BytesWriter, write_f32_le, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from optimist_aligner.text.sources import INT32

FLOAT32: Final = "f"
"""Type code of arrays of chances."""
NO_PARENT: Final = -1
"""Parent of a node that comes right after the output."""
_CHAIN: Final = array(INT32, range(NO_PARENT, 1023))
"""Parents of a chain, as long as any that was seen."""


@dataclass(slots=True)
class Draft:
    """A tree of expected tokens, the likeliest nodes first.

    Parents stand before their children, and values never rise, so any number of nodes from the
    front is a tree too.
    """

    token_ids: "array[int]" = field(default_factory=lambda: array(INT32))
    """[num_nodes]"""
    parents: "array[int]" = field(default_factory=lambda: array(INT32))
    """Index of the node that each node comes after; NO_PARENT for none [num_nodes]."""
    positions: "array[int]" = field(default_factory=lambda: array(INT32))
    """Where each node was read from, see `Sources.positions` [num_nodes]."""
    values: "array[float]" = field(default_factory=lambda: array(FLOAT32))
    """Chance that a node and all before it are what the output goes on with [num_nodes]."""
    _nodes: "Nodes | None" = field(default=None, repr=False, compare=False)
    """Tokens and parents once more, if it was grown or walked: an array makes an object of each."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether every node comes after the one before it."""
        parents = self.parents
        number = len(parents)
        if number and parents[-1] != number - 2:
            return False
        if number > len(_CHAIN):
            _CHAIN.extend(range(len(_CHAIN) - 1, number - 1))
        return parents == _CHAIN[:number]

    def walk(self, token_ids: "array[int]", node: int) -> tuple[int, int]:
        """Returns to which node some tokens lead after a node, and how many of them are nodes."""
        nodes = self._take_nodes()
        own, parents = nodes.token_ids, nodes.parents
        number: i64 = len(own)
        last: i64 = node
        count = 0
        for each in token_ids:
            token_id: i64 = each
            child = last + 1
            while child < number and (own[child] != token_id or parents[child] != last):
                child += 1
            if child == number:
                break
            last, count = child, count + 1
        return last, count

    def _take_nodes(self) -> "Nodes":
        if self._nodes is None:
            self._nodes = nodes = Nodes()
            nodes.token_ids, nodes.parents = vec[i32](self.token_ids), vec[i32](self.parents)
        return self._nodes

    def count_heights(self) -> list[int]:
        """Returns how long the longest path after each node is, and last after the root."""
        parents = self._take_nodes().parents
        heights = [0] * (len(parents) + 1)
        for node in range(len(parents) - 1, -1, -1):
            parent, height = parents[node], heights[node] + 1
            if height > heights[parent]:
                heights[parent] = height
        return heights


class Nodes:
    """Nodes of a tree, one after the other, without an object for each.

    Attributes:
        token_ids, parents: See Draft.
        positions, values: As little-endian int32 and float32.
    """

    __slots__ = ("parents", "positions", "token_ids", "values")

    def __init__(self) -> None:
        self.token_ids, self.parents = vec[i32](), vec[i32]()
        self.positions, self.values = BytesWriter(), BytesWriter()

    def __len__(self) -> int:
        return len(self.token_ids)

    def append(self, token_id: int, parent: int, position: int, value: float) -> None:
        """Adds a node; its parent is there already."""
        self.token_ids = append(self.token_ids, token_id)
        self.parents = append(self.parents, parent)
        write_i32_le(self.positions, position)
        write_f32_le(self.values, value)


def make_draft(nodes: Nodes) -> Draft:
    """Returns the tree of some nodes."""
    token_ids = array(INT32, memoryview(nodes.token_ids).tobytes())
    parents = array(INT32, memoryview(nodes.parents).tobytes())
    positions = array(INT32, nodes.positions.getvalue())
    values = array(FLOAT32, nodes.values.getvalue())
    if byteorder == "big":
        positions.byteswap()
        values.byteswap()
    return Draft(token_ids, parents, positions, values, nodes)
