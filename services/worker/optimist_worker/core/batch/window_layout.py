"""A window's nodes as the device wants them: numbered places, and the spans of their subtrees.

Place 0 is nowhere: where a window is that has nothing to offer. Place 1 is the top, behind which
the nodes without a parent come; the nodes follow in their order. Numbered depth first, whatever
comes behind a place has one span of numbers (Dietz, "Maintaining order in a linked list", 1982), so
that two comparisons tell what is left of a tree once the output has taken a path.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from optimist_worker.core.plan import MOST_WINDOW_NODES, WindowUpdate

NOWHERE = 0
TOP = 1
FIRST_NODE = 2
NUM_PLACES = FIRST_NODE + MOST_WINDOW_NODES
_NO_DEPTH = -(2**40)
"""Of what is no place that the output can be at."""
_LEFT_OUT = -2

Array = npt.NDArray[np.int64]


def lay_out_window(update: WindowUpdate, vocab_size: int) -> Array:
    """Lays a window out.

    A node whose token the model does not have, or a sibling before it has, is left out with
    everything behind it.

    Args:
        update: The window.
        vocab_size: Tokens are 0 to `vocab_size - 1`.

    Returns:
        Of each place its key, its number, the last number behind it, and its depth,
        `[4, NUM_PLACES]`. The key is parent place * vocab_size + token, by which a place is found
        in one comparison. What is not in use is 0 but for its depth, which is less than any.
    """
    tokens = np.array(update.token_ids, np.int64)
    if update.parents:
        parents, tokens = _usable_nodes(update.parents, update.token_ids, vocab_size)
        numbers, last, depths = _span(parents)
    else:
        is_wrong = (tokens < 0) | (tokens >= vocab_size)
        if is_wrong.any():
            tokens = tokens[: is_wrong.argmax()]
        parents = np.arange(-1, len(tokens) - 1)
        numbers = depths = parents + 2
        last = np.full(len(tokens), len(tokens))
    end = FIRST_NODE + len(tokens)
    layout = np.zeros((4, NUM_PLACES), np.int64)
    layout[3] = _NO_DEPTH
    layout[:, TOP] = 0, 0, len(tokens), 0
    layout[0, FIRST_NODE:end] = (parents + FIRST_NODE) * vocab_size + tokens
    layout[1, FIRST_NODE:end] = numbers
    layout[2, FIRST_NODE:end] = last
    layout[3, FIRST_NODE:end] = depths
    return layout


def _usable_nodes(
    parents: Sequence[int], token_ids: Sequence[int], vocab_size: int
) -> tuple[Array, Array]:
    """Returns parents and tokens of the nodes that are not left out."""
    indices: list[int] = []
    kept: dict[tuple[int, int], int] = {}
    for parent, token in zip(parents, token_ids, strict=True):
        node = (indices[parent] if parent >= 0 else -1, token)
        if node[0] == _LEFT_OUT or not 0 <= token < vocab_size or node in kept:
            indices.append(_LEFT_OUT)
        else:
            indices.append(kept.setdefault(node, len(kept)))
    nodes = np.array(list(kept), np.int64).reshape(-1, 2)
    return nodes[:, 0], nodes[:, 1]


def _span(parents: Array) -> tuple[Array, Array, Array]:
    """Returns each node's number, the last number behind it, and its depth, `[num_nodes]` each."""
    above = parents.tolist()
    sizes, depths = [1] * len(above), [1] * len(above)
    for node in range(len(above) - 1, -1, -1):
        if above[node] >= 0:
            sizes[above[node]] += sizes[node]
    numbers: list[int] = []
    # The number that the next child of each node gets; of the top at the end.
    free = [0] * len(above) + [1]
    for node, parent in enumerate(above):
        number = free[parent]
        free[parent] += sizes[node]
        free[node] = number + 1
        numbers.append(number)
        if parent >= 0:
            depths[node] = depths[parent] + 1
    first = np.array(numbers, np.int64)
    return first, first + np.array(sizes, np.int64) - 1, np.array(depths, np.int64)
