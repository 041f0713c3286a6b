"""Several windows in columns, window after window: they are checked and weighed all at once."""

from collections.abc import Sequence

import numpy as np

from optimist_common.drafts import ROOT
from optimist_scheduler.core.windows.window import (
    LEAST_HAZARD,
    LEAST_VALUE,
    MAX_NODES,
    NO_POSITION,
    PRIOR_HAZARD,
    Weights,
    Window,
)

_ONES = np.ones(MAX_NODES, np.float32)


def weigh_windows(
    windows: Sequence[Window],
    num_predicted_tokens: Sequence[int],
    num_prompt_tokens: Sequence[int],
    vocab_size: int,
) -> bool:
    """Checks windows, and does `Window.weigh` of those that are no chains.

    Args:
        windows: The windows [num_windows].
        num_predicted_tokens: Tokens of all predictions of each one's request [num_windows].
        num_prompt_tokens: Tokens of its prompt [num_windows].
        vocab_size: Token ids are below.

    Returns:
        False if `find_window_fault` finds a fault in one of them; then nothing is done.
    """
    if not all(map(_has_shape, windows)):
        return False
    if not _are_numbers(windows, num_predicted_tokens, num_prompt_tokens, vocab_size):
        return False
    trees = [each for each in windows if each.tree.parents is not None]
    if trees:
        columns = _TreeColumns(trees)
        if not columns.are_trees():
            return False
        columns.weigh()
    return True


def _has_shape(window: Window) -> bool:
    number, parents = window.num_nodes, window.tree.parents
    return (
        window.base >= 0
        and number <= MAX_NODES
        and len(window.positions) == number
        and len(window.values) in (0, number)
        and (parents is None or len(parents) == number)
    )


def _are_numbers(
    windows: Sequence[Window],
    num_predicted_tokens: Sequence[int],
    num_prompt_tokens: Sequence[int],
    vocab_size: int,
) -> bool:
    """Returns whether tokens, positions and values can be those of the windows."""
    columns = np.array(
        [[each.num_nodes for each in windows], num_predicted_tokens, num_prompt_tokens]
    )
    num_nodes, num_predicted, num_prompt = columns[:, columns[0] > 0]
    windows = [each for each in windows if each.num_nodes]
    if not windows:
        return True
    token_ids = np.concatenate([each.tree.token_ids for each in windows])
    # Negative numbers are large without their sign.
    if np.maximum.reduce(token_ids.view(np.uint32)) >= vocab_size:
        return False
    positions = np.concatenate([each.positions for each in windows])
    firsts = num_nodes.cumsum() - num_nodes
    is_right = np.maximum.reduceat(positions, firsts) < num_predicted
    is_right &= np.minimum.reduceat(positions, firsts) >= NO_POSITION - num_prompt
    if not is_right.all():
        return False
    all_values = [each.values for each in windows if each.has_values]
    if not all_values:
        return True
    # Each window's values begin at 1 at most, as if the one before it had ended with that.
    values = np.concatenate([column for each in all_values for column in (_ONES[:1], each)])
    firsts = np.array([0, *(len(each) + 1 for each in all_values)]).cumsum()
    falls = values[1:] <= values[:-1]
    falls[firsts[1:-1] - 1] = True
    return bool(falls.all() and (values[firsts[1:] - 1] >= 0).all())


class _TreeColumns:
    """The nodes of windows that are no chains."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows
        trees = [each.tree for each in windows]
        num_nodes = np.array([len(each) for each in trees])
        self._ends = num_nodes.cumsum()
        # Of each node, which window it is of and where that begins.
        self._rows = np.arange(len(windows)).repeat(num_nodes)
        self._firsts = (self._ends - num_nodes)[self._rows]
        self._indices = np.arange(len(self._rows)) - self._firsts
        self._parents = np.concatenate([each.parents for each in trees])
        self._token_ids = np.concatenate([each.token_ids for each in trees])

    def are_trees(self) -> bool:
        """Returns whether `TokenTree.find_fault` finds a fault in none of them."""
        is_right = (self._parents >= ROOT) & (self._parents < self._indices)
        # Siblings with the same token have the same key.
        keys = ((self._firsts + self._rows + self._parents) << 32) + self._token_ids
        keys.sort()
        return bool(is_right.all() and (keys[1:] != keys[:-1]).all())

    def weigh(self) -> None:
        """Does `Window.weigh` of all windows."""
        number, num_windows = len(self._rows), len(self._windows)
        nodes = np.arange(number)
        # After the nodes come the roots, one for each window.
        ahead = np.arange(number + num_windows)
        ahead[:number] = np.where(
            self._parents == ROOT, number + self._rows, self._firsts + self._parents
        )
        parents = ahead[:number]
        first_children = np.empty(number + num_windows, np.int64)
        # Of several values for one element the last stays.
        first_children[parents[::-1]] = nodes[::-1]
        values = [
            each.values if each.has_values else _ONES[: each.num_nodes] for each in self._windows
        ]
        own_hazards = np.zeros(number + num_windows)
        own_hazards[:number] = -np.log(np.maximum(np.concatenate(values), np.float32(LEAST_VALUE)))
        steps = np.maximum(own_hazards[:number] - own_hazards[parents], LEAST_HAZARD)
        has_values = np.array([each.has_values for each in self._windows])
        steps[~has_values[self._rows]] = PRIOR_HAZARD
        # Hazards and how many nodes are no first children, from a node up to the one ahead of it.
        sums = np.zeros((number + num_windows, 2))
        sums[:number, 0] = steps
        sums[:number, 1] = first_children[parents] != nodes
        while np.minimum.reduce(ahead) < number:
            sums += sums.take(ahead, axis=0)
            ahead = ahead.take(ahead)
        hazards = sums[:number, 0].astype(np.float32)
        likeliest = np.flatnonzero(sums[:number, 1] == 0)
        paths, path_ends = self._indices[likeliest], likeliest.searchsorted(self._ends)
        ends = zip(self._ends.tolist(), path_ends.tolist(), strict=True)
        first = path_first = 0
        for window, (end, path_end) in zip(self._windows, ends, strict=True):
            window.take_weights(Weights(hazards[first:end], paths[path_first:path_end]))
            first, path_first = end, path_end
