"""The drafts of all rows of a step, chains or trees, as padded tensors."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from optimist_worker.core.tree import chain_parents, node_depths


@dataclass(slots=True)
class Drafts:
    """R rows of at most K nodes; only the first `num_tokens` nodes of a row mean anything.

    A node is an index into its row. Node -1 is the row's last known token, which all of its drafts
    follow. What is padded must still be a valid index: any parent in [-1, K).
    """

    token_ids: Tensor
    """Int64 `[R, K]`."""
    num_tokens: Tensor
    """Nodes of each row, int64 `[R]`."""
    sources: Tensor
    """`DraftSource` of each row, int64 `[R]`."""
    parents: Tensor | None = None
    """Each node's parent, int64 `[R, K]`, or None if all rows are chains.

    Parents come before their children, and siblings have different tokens.
    """
    max_siblings: int = 1
    """Most children that were drawn of any node, known to the host; 1 for chains."""
    probabilities: Tensor | None = None
    """The distribution from which each node was drawn, float32 `[R, K, V]`, or None if none was.

    Siblings are drawn in their order without replacement: the distribution of each leaves out those
    before it, and sums to 1. Whether a node is in the tree must not depend on what was drawn.
    """
    is_certain: Tensor | None = None
    """Rows whose nodes were not drawn by chance, bool `[R]`; their probabilities do not count.

    None: all rows if there are no probabilities, else none.
    """

    _depths: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def num_rows(self) -> int:
        """R."""
        return self.token_ids.shape[0]

    @property
    def width(self) -> int:
        """K."""
        return self.token_ids.shape[1]

    @property
    def is_node(self) -> Tensor:
        """Which places hold a draft rather than padding, bool `[R, K]`."""
        nodes = torch.arange(self.width, device=self.token_ids.device)
        return nodes < self.num_tokens[:, None]

    @property
    def depths(self) -> Tensor:
        """Nodes from the top down to each node, itself included, int64 `[R, K]`; found once."""
        if self._depths is None:
            if self.parents is None:
                nodes = torch.arange(1, 1 + self.width, device=self.token_ids.device)
                self._depths = nodes.expand(self.num_rows, -1)
            else:
                self._depths = node_depths(self.parents)
        return self._depths

    @property
    def is_tree(self) -> Tensor:
        """Which rows are no chains, bool `[R]`."""
        if self.parents is None:
            return torch.zeros_like(self.num_tokens, dtype=torch.bool)
        chain = chain_parents(self.num_rows, self.width, self.parents.device)
        return ((self.parents != chain) & self.is_node).any(1)

    def trim(self, width: int) -> "Drafts":
        """Leaves out what is after the widest row, which has at most `width` nodes."""
        if self.width <= width:
            return self
        parents, probabilities = self.parents, self.probabilities
        return replace(
            self,
            token_ids=self.token_ids[:, :width],
            parents=None if parents is None else parents[:, :width],
            probabilities=None if probabilities is None else probabilities[:, :width],
        )


def no_drafts(num_rows: int, device: torch.device) -> Drafts:
    """Returns the drafts of rows that have none; K is 0."""
    zeros = torch.zeros(num_rows, dtype=torch.int64, device=device)
    return Drafts(zeros[:, None][:, :0], zeros, zeros)
