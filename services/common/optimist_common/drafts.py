"""Expected tokens as a tree, made by proposers and drafted from by workers; sources of drafts."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from optimist_common.columns import Int32Column

ROOT = -1
"""The node before those that have no parent: where the output was when the tree was made."""

NodeColumn = npt.NDArray[np.int64]


# Not frozen, as that takes several times as long to make.
@dataclass(slots=True, eq=False)
class TokenTree:
    """Nodes with a token each. Parents come before their children, siblings have different tokens.

    It is never changed. The likeliest come first; any number of nodes from the front is a tree too.
    """

    token_ids: Int32Column
    """[num_nodes]"""
    parents: Int32Column | None = None
    """Index of each node's parent, ROOT for none [num_nodes]; None for a chain."""

    @classmethod
    def from_columns(cls, token_ids: Int32Column, parents: Int32Column) -> "TokenTree":
        """Returns the tree; parents that make a chain, or none at all, are those of a chain."""
        is_chain = len(parents) == 0
        # Of most trees, the last node alone says that they are none.
        if not is_chain and parents.item(-1) == len(token_ids) - 2:
            of_chain = np.arange(ROOT, len(token_ids) - 1, dtype=parents.dtype)
            # Bytes are compared sooner than columns.
            is_chain = parents.tobytes() == of_chain.tobytes()
        return cls(token_ids, None if is_chain else parents)

    def __len__(self) -> int:
        return len(self.token_ids)

    def find_fault(self, *, allows_twins: bool = False) -> str | None:
        """Returns why the columns are no tree; None if they are one.

        Twins are siblings with the same token.
        """
        parents, number = self.parents, len(self)
        if parents is None:
            return None
        if len(parents) != number:
            return f"parents: {len(parents)} of {number} nodes"
        is_wrong = (parents < ROOT) | (parents >= np.arange(number))
        if is_wrong.any():
            node = int(is_wrong.argmax())
            return f"parents: {parents[node]} is not in -1 to {node - 1}"
        nodes = zip(parents.tolist(), self.token_ids.tolist(), strict=True)
        if not allows_twins and len(set(nodes)) < number:
            return "parents: siblings have the same token"
        return None

    def list_parents(self) -> Sequence[int]:
        """Returns the parent of each node, of a chain too."""
        if self.parents is None:
            return range(ROOT, len(self) - 1)
        parents: list[int] = self.parents.tolist()
        return parents

    def walk(self, token_ids: Sequence[int], node: int = ROOT) -> list[int]:
        """Returns the nodes that tokens pass after a node, as far as they are a path."""
        path = list[int]()
        if self.parents is None:
            own = self.token_ids[node + 1 : node + 1 + len(token_ids)].tolist()
            for mine, token_id in zip(own, token_ids, strict=False):
                if mine != token_id:
                    break
                node += 1
                path.append(node)
            return path
        tree, parents = self.token_ids.tolist(), self.parents.tolist()
        for token_id in token_ids:
            try:
                child = tree.index(token_id, node + 1)
                while parents[child] != node:
                    child = tree.index(token_id, child + 1)
            except ValueError:
                break
            path.append(child)
            node = child
        return path

    def find_subtree(self, node: int) -> NodeColumn:
        """Returns all nodes after a node, itself not among them, in their order."""
        if self.parents is None:
            return np.arange(node + 1, len(self))
        parents, after, nodes = self.parents.tolist(), {node}, list[int]()
        for index in range(node + 1, len(parents)):
            if parents[index] in after:
                after.add(index)
                nodes.append(index)
        return np.array(nodes, np.int64)

    def select(self, nodes: NodeColumn) -> "TokenTree":
        """Returns the tree of some nodes; those whose parent is not among them have none."""
        token_ids = self.token_ids[nodes]
        if self.parents is None:
            return TokenTree(token_ids)
        # The last element is the root's.
        indices = np.full(len(self) + 1, ROOT, np.int32)
        indices[nodes] = np.arange(len(nodes))
        return TokenTree.from_columns(token_ids, indices[self.parents[nodes]])

    def find_likeliest_path(self) -> NodeColumn:
        """Returns the first node, its first child, and so on."""
        if self.parents is None:
            return np.arange(len(self))
        path, node = list[int](), ROOT
        for index, parent in enumerate(self.parents.tolist()):
            if parent == node:
                path.append(index)
                node = index
        return np.array(path, np.int64)

    def count_depths(self) -> NodeColumn:
        """Returns how many nodes lead to each, itself among them [num_nodes]."""
        if self.parents is None:
            return np.arange(1, len(self) + 1)
        # The last element is the root's.
        depths = [0] * (len(self) + 1)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = depths[parent] + 1
        return np.array(depths[:-1], np.int64)


class DraftSource(IntEnum):
    """The numbers of `optimist.common.v1.DraftSource`."""

    TARGET = 0
    """No draft: the token came from the target model itself."""
    PREDICTION = 1
    DRAFT_MODEL = 2
    QUANTISED = 3
    MEDUSA = 4
    EAGLE = 5
    NGRAM = 6
    """The request's own text, where its last tokens occur before."""
    FORM = 7
    """The form of the answer: its grammar forces these tokens or makes them likely."""

    @property
    def label(self) -> str:
        """Name in metrics and answers."""
        return self.name.lower()


TARGET, PREDICTION, NGRAM, FORM = map(
    int, (DraftSource.TARGET, DraftSource.PREDICTION, DraftSource.NGRAM, DraftSource.FORM)
)
"""For columns: numpy takes 7 us to compare one with an enumeration and 1 us with an integer."""
