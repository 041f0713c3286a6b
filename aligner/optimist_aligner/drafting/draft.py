"""What an output is expected to go on with."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from optimist_aligner.text.sources import INT32

FLOAT32: Final = "f"
"""Type code of arrays of chances."""
NO_PARENT: Final = -1
"""Parent of a node that comes right after the output."""


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

    @classmethod
    def from_nodes(cls, nodes: Sequence[tuple[int, int, int, float]]) -> "Draft":
        """Returns the tree of some nodes: of each a cell of every column."""
        if not nodes:
            return cls()
        token_ids, parents, positions, values = zip(*nodes, strict=True)
        return cls(
            array(INT32, token_ids),
            array(INT32, parents),
            array(INT32, positions),
            array(FLOAT32, values),
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether every node comes after the one before it."""
        parents = self.parents
        if parents and parents[-1] != len(parents) - 2:
            return False
        return parents == array(INT32, range(-1, len(parents) - 1))
