"""In which order states go through the tokens of a pass: one level after the other.

On a level are tokens of different rows, or of different branches of a tree of drafts; each goes on
from a token on the level before.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Integers = npt.NDArray[np.int64]


class Level(NamedTuple):
    """Tokens whose states are computed at once."""

    span: slice
    """Of the walk's tokens."""
    sources: Tensor | None
    """From which state of the level before each goes on, int64; None: from the first ones, in their
    order."""


class Walk(NamedTuple):
    """Tokens of some rows in the order in which states go through them."""

    slots: Tensor
    """Of the states to begin with, int64 `[num_states]`."""
    tokens: Tensor
    """Indices in the pass, int64 `[num_tokens]`."""
    levels: list[Level]


def walk_paths(
    slots: Integers,
    firsts: Integers,
    lengths: Integers,
    path: Integers | None,
    device: torch.device,
) -> Walk:
    """Goes down one path per row: that of tokens `firsts + path[:, i]` for i below `lengths`.

    Slots, first tokens and lengths are `[num_rows]`, paths `[num_rows, width]`; None: tokens that
    follow one another. Rows of length 0 are left out.
    """
    order = np.argsort(-lengths, kind="stable")[: int((lengths > 0).sum())]
    firsts, lengths = firsts[order], lengths[order]
    depths = np.arange(lengths.max(initial=0))
    steps = depths[:, None] if path is None else path[order, : len(depths)].T
    is_on = depths[:, None] < lengths
    levels, first = [], 0
    for count in is_on.sum(1).tolist():
        levels.append(Level(slice(first, first + count), None))
        first += count
    tokens = (firsts + steps)[is_on]
    return Walk(_send(slots[order], device), _send(tokens, device), levels)


def walk_trees(
    slots: Integers,
    firsts: Integers,
    lengths: Integers,
    parents: Sequence[Sequence[int]],
    device: torch.device,
) -> Walk:
    """Goes through trees, whose nodes are the tokens from `firsts` on, `lengths` of each row.

    The first three are `[num_rows]`. The parents of each row's nodes come before them, or are -1.
    """
    rows = np.flatnonzero(lengths)
    levels: list[list[tuple[int, int]]] = []
    for state, row in enumerate(rows.tolist()):
        places: list[tuple[int, int]] = []
        for node in range(int(lengths[row])):
            parent = parents[row][node]
            depth, source = (0, state) if parent < 0 else places[parent]
            if depth == len(levels):
                levels.append([])
            places.append((depth + 1, len(levels[depth])))
            levels[depth].append((int(firsts[row]) + node, source))
    tokens = np.array([token for level in levels for token, _ in level], np.int64)
    found, first = [], 0
    for level in levels:
        sources = _send(np.array([source for _, source in level], np.int64), device)
        found.append(Level(slice(first, first + len(level)), sources))
        first += len(level)
    return Walk(_send(slots[rows], device), _send(tokens, device), found)


def _send(values: Integers, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)
