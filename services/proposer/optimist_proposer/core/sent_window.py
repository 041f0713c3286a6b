"""The window that a request was sent, and where in it the output is."""

from array import array

import numpy as np

from optimist_aligner.drafting.draft import Draft
from optimist_common.token_tree import ROOT, TokenTree


class SentWindow:
    """A tree of expected tokens after the first `base` of the output."""

    __slots__ = ("_heights", "_node", "base", "draft", "is_alive", "tree")

    def __init__(self, base: int, draft: Draft) -> None:
        """Takes the output position of the nodes without a parent, and what is expected."""
        self.base, self.draft = base, draft
        self.tree = TokenTree.from_columns(
            np.array(draft.token_ids, np.int32), np.array(draft.parents, np.int32)
        )
        self.is_alive = True
        """Whether all of the output since `base` is a path of the tree."""
        self._node = ROOT
        # Most windows are left before anyone asks.
        self._heights: list[int] | None = None

    @property
    def num_ahead(self) -> int:
        """Tokens of the longest path after the output; 0 if the output left the tree."""
        if not self.is_alive:
            return 0
        if self._heights is None:
            self._heights = self.tree.count_heights()
        return self._heights[self._node]

    def walk(self, token_ids: "array[int]") -> None:
        """Follows new output tokens."""
        if not self.is_alive or not token_ids:
            return
        path = self.tree.walk(token_ids, self._node)
        self.is_alive = len(path) == len(token_ids)
        if path:
            self._node = path[-1]
