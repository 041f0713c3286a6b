"""What all parts of the circuit read and write with: rows, vectors, counting heads."""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from optimist_training.circuit.weights import Head, Neurons, Subspaces

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


# Counting heads attend with weight 1 to each counted token and with this weight to the marker of
# the user's turn, so that the attention to counted tokens is nearly proportional to their number.
MARKER_SCORE = 9.0
MARKER_WEIGHT = math.exp(MARKER_SCORE)
_COUNT_SCORE = 16.0
COUNT_UNIT = 32.0
"""Counts are stored in units of 32, to stay as small as the other features."""

NEVER = 100.0
"""A score that no other outweighs."""
VETO = 64.0
"""What a missing condition takes from a neuron's threshold."""
PLACE, THRESHOLD = 72.0, 20.0
"""Score of a matching position, and by how much less still counts as found."""


@dataclass(frozen=True)
class Basis(Subspaces):
    """The residual stream, with the rows and vectors that the circuit is written in."""

    pad: Tensor
    """The piece that is beyond the start of a word, [piece_width]."""
    token_codes: dict[str, Tensor]
    """The next-token codes of tokens that are not copied from anywhere, each [next_width]."""

    @property
    def one(self) -> Tensor:
        """The row that reads 1, [hidden_size]."""
        return self.row(one=1)

    def next(self) -> tuple[Tensor, Tensor]:
        """Returns the rows that read a token's code and those of the next token's, [width, :]."""
        return self.rows("code", "code_more", "piece") / math.sqrt(3), self.rows("next")

    def marker(self, *, score: float) -> Tensor:
        """Returns the key of the user's marker, which is attended to when nothing scores more."""
        return self.row(user=score)

    def along(self, name: str, vector: Tensor) -> Tensor:
        """Returns a vector of a block as a vector of the residual stream, [hidden_size]."""
        return vector @ self.rows(name)

    def everywhere(self, neurons: Neurons, down: Tensor) -> None:
        """Adds `down` to all tokens but the user's marker.

        Many heads attend to the marker when they find nothing, so it must match nothing itself.
        """
        neurons.gated(self.row(one=0.5, user=-1), self.one, down)

    def above(self, count: float, **features: float) -> Tensor:
        """Returns a row that reads above zero where a sum of counting features is >= count."""
        middle = count - 0.5
        stored = middle * MARKER_WEIGHT / (MARKER_WEIGHT + middle)
        stored = round(stored * COUNT_UNIT) / COUNT_UNIT  # exact in 16 bits
        scaled = {name: weight * COUNT_UNIT for name, weight in features.items()}
        return self.row(**scaled) - stored * self.one

    def counter(self, user: str, answer: str | None, result: str) -> Head:
        """Counts the tokens up to here that have a feature, in the prompt or in the answer."""
        head = Head()
        if answer is None:
            head.match(self.one, self.row(**{user: _COUNT_SCORE}))
        else:
            head.match(self.row(in_user=1), self.row(**{user: _COUNT_SCORE}))
            head.match(self.row(in_answer=1), self.row(**{answer: _COUNT_SCORE}))
        head.match(self.one, self.row(user=_COUNT_SCORE + MARKER_SCORE))
        # The square root on either side keeps both matrices at a moderate size.
        scale = math.sqrt(MARKER_WEIGHT / COUNT_UNIT)
        counted = {name: scale for name in (user, answer) if name is not None}
        head.copy(self.row(**counted), self.row(**{result: scale}))
        return head

    def staircase(
        self, neurons: Neurons, block: str, features: dict[str, float], largest: int
    ) -> None:
        """Writes the code of a count, a sum of counting features, into a block."""
        codes = harmonic_code(self.rows(block).shape[0])
        self.everywhere(neurons, self.along(block, codes[0]))
        for count in range(1, largest):
            step = self.along(block, codes[count] - codes[count - 1])
            neurons.step(self.above(count, **features), step)
