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
    origins: Tensor
    """Which token of the walk each goes on from, -1 - i: the i-th state, int64 `[num_tokens]`."""
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
    numbers = np.cumsum(is_on).reshape(is_on.shape) - 1
    states = np.broadcast_to(-1 - np.arange(len(lengths)), (1, len(lengths)))
    origins = np.concatenate([states, numbers])[:-1][is_on]
    return _walk(slots[order], tokens, origins, levels, device)


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
    origins, above = [], -1 - np.arange(len(rows))
    for level in levels:
        sources = np.array([source for _, source in level], np.int64)
        origins.append(above[sources])
        above = first + np.arange(len(level))
        found.append(Level(slice(first, first + len(level)), _send(sources, device)))
        first += len(level)
    every = np.concatenate([np.empty(0, np.int64), *origins])
    return _walk(slots[rows], tokens, every, found, device)


def _walk(
    slots: Integers, tokens: Integers, origins: Integers, levels: list[Level], device: torch.device
) -> Walk:
    return Walk(_send(slots, device), _send(tokens, device), _send(origins, device), levels)


def _send(values: Integers, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)
