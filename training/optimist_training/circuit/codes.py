"""Vectors that stand for tokens and for counts."""

import itertools
import math
from functools import cache

import torch
from torch import Tensor

LARGEST_COUNT = 45
_GRID = 2048


def spherical_code(count: int, width: int, seed: int, num_steps: int = 100) -> Tensor:
    """Returns unit vectors that are far apart, [count, width].

    Starts at random and pushes the nearest pairs apart.
    """
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, width, generator=generator, dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True)
    for step in range(num_steps):
        products = points @ points.T
        products.fill_diagonal_(-1.0)
        force = torch.softmax(products * 30.0, dim=1) @ points
        points = points - 0.5 * (1.0 - step / num_steps) * force
        points = points / points.norm(dim=1, keepdim=True)
    return points


@cache
def harmonic_code(width: int) -> Tensor:
    """Returns one unit vector for each count, [num_counts, width]; adding one is a rotation.

    Rounded to a grid on which differences of codes are exact in 16 bits, each number up or down so
    that the length stays 1: heads that count within a line compare its code with itself.
    """
    counts = torch.arange(LARGEST_COUNT + 20, dtype=torch.float64)
    angles = counts[:, None] * _frequencies(width // 2)
    codes = torch.cat((angles.cos(), angles.sin()), dim=1) / math.sqrt(width // 2)
    choices = torch.tensor(list(itertools.product((0.0, 1.0), repeat=width)), dtype=torch.float64)
    rounded = ((codes * _GRID).floor()[:, None] + choices) / _GRID
    best = (rounded.square().sum(dim=2) - 1).abs().argmin(dim=1)
    return rounded[torch.arange(len(codes)), best]


def next_count(width: int) -> Tensor:
    """Returns the matrix that turns the code of n into that of n + 1, [width, width]."""
    frequencies = _frequencies(width // 2)
    cosine, sine = frequencies.cos().diag(), frequencies.sin().diag()
    return torch.cat((torch.cat((cosine, -sine), 1), torch.cat((sine, cosine), 1)))


@cache
def _frequencies(count: int) -> Tensor:
    """Returns the angular frequencies whose codes of different counts are least alike, [count]."""
    differences = torch.arange(1, LARGEST_COUNT, dtype=torch.float64)
    likeness = torch.cos(2 * math.pi / 64 * torch.arange(1, 32)[:, None] * differences)
    choices = torch.tensor(list(itertools.combinations(range(31), count)))
    generator = torch.Generator().manual_seed(0)
    choices = choices[torch.randperm(len(choices), generator=generator)[:20_000]]
    best = likeness[choices].mean(dim=1).amax(dim=1).argmin()
    return (choices[best].double() + 1) * (2 * math.pi / 64)
