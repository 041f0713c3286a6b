"""The window that a request was sent, and how its output walks it."""

from array import array

from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import INT32


class SentWindow:
    """A tree of expected tokens behind the first `base` of the output."""

    __slots__ = ("_at", "_heights", "base", "draft", "is_alive")

    def __init__(self, base: int, draft: Draft) -> None:
        """Takes the output position of the roots and the tree."""
        self.base, self.draft = base, draft
        self.is_alive = True
        """Whether all of the output since `base` is a path of the tree."""
        self._at = NO_PARENT
        # Longest path below each node, and last, where NO_PARENT points, that of the whole tree.
        # Most windows are left before anyone asks.
        self._heights: array[int] | None = None

    @property
    def num_ahead(self) -> int:
        """Tokens of the longest path behind the output; 0 if the output left the tree."""
        if not self.is_alive:
            return 0
        if self._heights is None:
            self._heights = _heights(self.draft)
        return self._heights[self._at]

    def walk(self, token_ids: "array[int]") -> None:
        """Follows new output tokens."""
        if not self.is_alive:
            return
        find, parents, at = self.draft.token_ids.index, self.draft.parents, self._at
        try:
            for token_id in token_ids:
                node = find(token_id, at + 1)
                while parents[node] != at:
                    node = find(token_id, node + 1)
                at = node
        except ValueError:
            self.is_alive = False
        self._at = at


def _heights(draft: Draft) -> "array[int]":
    size = len(draft)
    if draft.is_chain:
        return array(INT32, [*range(size - 1, -1, -1), size])
    heights = array(INT32, bytes((size + 1) * array(INT32).itemsize))
    for node in range(size - 1, -1, -1):
        parent = draft.parents[node]
        heights[parent] = max(heights[parent], heights[node] + 1)
    return heights
