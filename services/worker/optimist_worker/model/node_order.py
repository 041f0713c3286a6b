"""An order in which to walk a tree of drafts so that each branch is finished first."""

from collections.abc import Sequence


def depth_first(parents: Sequence[int]) -> list[int]:
    """Orders nodes so that every node comes behind its parent and before its parent's siblings.

    Args:
        parents: Index of each node's parent, less than its own; -1 for children of the root.

    Returns:
        All indices; siblings keep their order.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
    order: list[int] = []
    stack = children[0][::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += children[node + 1][::-1]
    return order
