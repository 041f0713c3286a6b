"""A window's nodes as the device wants them: numbered places, and the spans of their subtrees.

Place 0 is nowhere: where a window is that has nothing to offer. Place 1 is the root, after which
the nodes without a parent come; the nodes follow in their order. Numbered depth first, whatever
comes after a place has one span of numbers (Dietz, "Maintaining order in a linked list", 1982), so
that two comparisons find what is left of a tree once the output has taken a path.
"""

import numpy as np
import numpy.typing as npt

from optimist_common.token_tree import TokenTree
from optimist_worker.core.plan import MOST_WINDOW_NODES, WindowUpdate

NOWHERE = 0
ROOT_PLACE = 1
FIRST_NODE = 2
"""Place of node 0."""
NUM_PLACES = FIRST_NODE + MOST_WINDOW_NODES
_NO_DEPTH = -(2**40)
"""Of what is no place that the output can be at."""

Array = npt.NDArray[np.int64]


def lay_out_window(update: WindowUpdate, vocab_size: int) -> Array:
    """Lays a window out.

    A node whose token the model does not have, or a sibling before it has, is left out with
    everything after it.

    Args:
        update: The window.
        vocab_size: Tokens are 0 to `vocab_size - 1`.

    Returns:
        Of each place its key, its number, the last number after it, and its depth,
        `[4, NUM_PLACES]`. The key is parent place * vocab_size + token, by which a place is found
        in one comparison. What is not in use is 0 but for its depth, which is less than any.
    """
    tokens = np.array(update.token_ids, np.int64)
    tree = TokenTree.from_columns(tokens.astype(np.int32), np.array(update.parents, np.int32))
    parents = np.array(tree.list_parents(), np.int64)
    is_used = (tokens >= 0) & (tokens < vocab_size)
    if tree.parents is None:
        is_used = np.logical_and.accumulate(is_used)
    else:
        _leave_out(is_used, parents, tokens)
    nodes = np.flatnonzero(is_used)
    layout = np.zeros((4, NUM_PLACES), np.int64)
    layout[3] = _NO_DEPTH
    layout[:, ROOT_PLACE] = 0, 0, len(nodes), 0
    places = FIRST_NODE + nodes
    layout[0, places] = (parents[nodes] + FIRST_NODE) * vocab_size + tokens[nodes]
    if tree.parents is None:
        layout[1, places], layout[2, places] = nodes + 1, len(nodes)
    else:
        layout[1:3, places] = _span(parents, is_used)[:, nodes]
    layout[3, places] = tree.count_depths()[nodes]
    return layout


def _leave_out(is_used: npt.NDArray[np.bool_], parents: Array, tokens: Array) -> None:
    """Leaves out what comes after nodes that are left out, and second siblings with a token."""
    found = set[tuple[int, int]]()
    for node, key in enumerate(zip(parents.tolist(), tokens.tolist(), strict=True)):
        is_used[node] &= (key[0] < 0 or is_used[key[0]]) and key not in found
        found.add(key)


def _span(parents: Array, is_used: npt.NDArray[np.bool_]) -> Array:
    """Returns the number of each node and the last number after it, `[2, num_nodes]`."""
    above, sizes = parents.tolist(), is_used.astype(np.int64).tolist()
    for node in range(len(above) - 1, -1, -1):
        if above[node] >= 0:
            sizes[above[node]] += sizes[node]
    numbers: list[int] = []
    # The number that the next child of each node gets; of the root at the end.
    free = [0] * len(above) + [1]
    for node, parent in enumerate(above):
        number = free[parent]
        free[parent] += sizes[node]
        free[node] = number + 1
        numbers.append(number)
    first = np.array(numbers, np.int64)
    return np.stack([first, first + np.array(sizes, np.int64) - 1])
