"""What an output is expected to go on with."""

from array import array
from dataclasses import dataclass, field
from struct import pack
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

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether every node comes after the one before it."""
        return all(parent == node for node, parent in enumerate(self.parents, NO_PARENT))

    def walk(self, token_ids: "array[int]", node: int) -> tuple[int, int]:
        """Returns to which node some tokens lead after a node, and how many of them are nodes."""
        for count, token_id in enumerate(token_ids):
            for child in range(node + 1, len(self)):
                if self.token_ids[child] == token_id and self.parents[child] == node:
                    node = child
                    break
            else:
                return node, count
        return node, len(token_ids)

    def find_height(self, node: int) -> int:
        """Returns how many tokens the longest path after a node has; NO_PARENT for the root."""
        heights = [0] * (len(self) + 1)
        for child in range(len(self) - 1, node, -1):
            parent = self.parents[child]
            heights[parent] = max(heights[parent], heights[child] + 1)
        return heights[node]

    def pack(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Returns tokens, parents (none of a chain), positions and values as little-endian bytes.

        They are int32, values float32.
        """
        number, parents = len(self), () if self.is_chain else self.parents
        return (
            pack(f"<{number}i", *self.token_ids),
            pack(f"<{len(parents)}i", *parents),
            pack(f"<{number}i", *self.positions),
            pack(f"<{number}f", *self.values),
        )
