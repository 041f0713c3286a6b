"""A way down a tree of drafts on the host, which looks ahead along each node's first child."""

from collections.abc import Sequence


class TreeWalk:
    """Where a path has got to. Elements are counted from 0 for node -1, 1 + i for node i."""

    def __init__(self, parents: Sequence[int], token_ids: Sequence[int]) -> None:
        """Begins at the top.

        Args:
            parents: Of each node, `[num_nodes]`.
            token_ids: Of each node; siblings have different ones, `[num_nodes]`.
        """
        self._children: dict[tuple[int, int], int] = {}
        self._first_child = [0] * (1 + len(parents))
        for element, (parent, token_id) in enumerate(zip(parents, token_ids, strict=True), 1):
            self._children[1 + parent, token_id] = element
            self._first_child[1 + parent] = self._first_child[1 + parent] or element
        self.ahead = [0]
        """Elements behind which tokens are to be chosen now; empty at the end."""

    def look_ahead(self, most: int) -> None:
        """Adds the first child of the last element, its first child and so on.

        Args:
            most: Elements to be looked at, at least one.
        """
        while len(self.ahead) < most and (child := self._first_child[self.ahead[-1]]):
            self.ahead.append(child)

    def follow(self, chosen: Sequence[int]) -> bool:
        """Goes on by the token chosen behind each of the elements ahead.

        Returns:
            Whether all of them lie on the path.
        """
        child, passed = 0, 0
        for passed, (element, token_id) in enumerate(zip(self.ahead, chosen, strict=True), 1):
            child = self._children.get((element, token_id), 0)
            if child not in self.ahead[passed : passed + 1]:
                break
        is_through = passed == len(self.ahead)
        self.ahead = [child] if child else []
        return is_through
