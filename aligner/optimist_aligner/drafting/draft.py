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
    _listed: tuple[list[int], list[int]] | None = field(default=None, repr=False, compare=False)
    """Tokens and parents once more, if there are such lists: an array makes an object of each."""

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
        own, parents = self._list()
        number, count = len(own), 0
        for token_id in token_ids:
            child = node + 1
            while child < number and (own[child] != token_id or parents[child] != node):
                child += 1
            if child == number:
                break
            node, count = child, count + 1
        return node, count

    def _list(self) -> tuple[list[int], list[int]]:
        if self._listed is None:
            self._listed = self.token_ids.tolist(), self.parents.tolist()
        return self._listed

    def count_heights(self) -> list[int]:
        """Returns how long the longest path after each node is, and last after the root."""
        parents = self._list()[1]
        heights = [0] * (len(parents) + 1)
        for node in range(len(parents) - 1, -1, -1):
            parent, height = parents[node], heights[node] + 1
            if height > heights[parent]:
                heights[parent] = height
        return heights


def make_draft(
    token_ids: list[int], parents: list[int], positions: list[int], values: list[float]
) -> Draft:
    """Returns the tree of four columns."""
    # An array that is made of numbers parses each of them as an argument.
    number = len(token_ids)
    form = f"{3 * number}{INT32}{number}{FLOAT32}"
    data = pack(form, *token_ids, *parents, *positions, *values)
    size = len(data) // 4
    return Draft(
        array(INT32, data[:size]),
        array(INT32, data[size : 2 * size]),
        array(INT32, data[2 * size : 3 * size]),
        array(FLOAT32, data[3 * size :]),
        (token_ids, parents),
    )
