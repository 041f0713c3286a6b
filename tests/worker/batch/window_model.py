"""What windows mean, in plain Python: a text is looked up in a tree of dictionaries."""

from dataclasses import dataclass, field

from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES
from optimist_worker.core.plan import WindowUpdate

Node = tuple[int, int]
"""Token and parent."""


@dataclass
class ModelWindow:
    """A slot's output, and the window that is compared with it from the start each time."""

    vocab_size: int
    output: list[int] = field(default_factory=list)
    update: WindowUpdate | None = None
    is_tree: bool = False

    def set(self, update: WindowUpdate) -> None:
        """Replaces the window, unless it begins behind what is known."""
        self.update = update if update.base <= len(self.output) else None
        self.is_tree = bool(update.parents)

    def left(self) -> list[Node]:
        """The nodes after the path that the output has taken, parents counted among them."""
        return [(token, parent) for _, token, parent in self._find_left()[1]]

    def find_nodes(self, path: list[int]) -> list[int]:
        """The node that the output is at, and nodes of a path of what is left, as sent."""
        at, left = self._find_left()
        return [at, *(left[node][0] for node in path)]

    def _find_left(self) -> tuple[int, list[tuple[int, int, int]]]:
        if self.update is None:
            return -1, []
        children = self._children(self.update)
        place = -1
        for token in self.output[self.update.base :]:
            if token not in children[place]:
                return -1, []
            place = children[place][token]
        parents = {node: above for above, behind in children.items() for node in behind.values()}
        indices = {place: -1}
        found: list[tuple[int, int, int]] = []
        for node in sorted(parents):
            if parents[node] in indices:
                indices[node] = len(found)
                found.append((node, self.update.token_ids[node], indices[parents[node]]))
        return place, found

    def drafts(self, limit: int) -> list[Node]:
        """What is drafted of it."""
        return self.left()[: min(limit, MOST_TREE_NODES) if self.is_tree else limit]

    def _children(self, update: WindowUpdate) -> dict[int, dict[int, int]]:
        """The children by token of every node that can be reached, -1 for the top."""
        parents = update.parents or range(-1, len(update.token_ids) - 1)
        children: dict[int, dict[int, int]] = {-1: {}}
        for node, (token, parent) in enumerate(zip(update.token_ids, parents, strict=True)):
            is_token = 0 <= token < self.vocab_size
            if is_token and parent in children and token not in children[parent]:
                children[parent][token] = node
                children[node] = {}
        return children
