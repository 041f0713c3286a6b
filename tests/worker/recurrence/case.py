"""Random passes through recurrent layers, and what their tokens bring alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from optimist_worker.core.recurrence.convolution import convolve
from optimist_worker.core.recurrence.delta import run_delta_rule
from optimist_worker.core.recurrence.rows import RecurrentPass
from optimist_worker.core.recurrence.scan import DeltaTokens
from optimist_worker.core.recurrence.states import StatePool, StateSpec

NUM_SLOTS, CHANNELS, WIDTH = 4, 6, 4
HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM = 4, 2, 3, 5
CPU = torch.device("cpu")
SPECS = {
    1: StateSpec(WIDTH - 1, CHANNELS, (HEADS, KEY_DIM, VALUE_DIM)),
    2: StateSpec(WIDTH - 1, CHANNELS),
    4: StateSpec(WIDTH - 1, CHANNELS, (HEADS, KEY_DIM, VALUE_DIM)),
}


@dataclass
class Row:
    """A row of a pass."""

    slot: int
    num_known: int
    parents: list[int] = field(default_factory=list)
    """Of its drafts."""
    accepted: list[int] = field(default_factory=list)
    """The nodes of a path from the top."""


@st.composite
def rows(draw: st.DrawFn, *, trees: bool) -> list[Row]:
    """Draws the rows of a pass: some have no tokens, some no drafts, and any may be accepted."""
    found: list[Row] = []
    for slot in draw(st.permutations(range(NUM_SLOTS)))[: draw(st.integers(1, NUM_SLOTS))]:
        num_known = draw(st.integers(0, 6))
        number = draw(st.integers(0, 7)) if num_known else 0
        parents = [draw(st.integers(-1, node - 1)) if trees else node - 1 for node in range(number)]
        path = [draw(st.integers(0, number - 1))] if number and draw(st.booleans()) else []
        while path and parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        found.append(Row(slot, num_known, parents, path))
    return found


def make_pool() -> StatePool:
    return StatePool(SPECS, NUM_SLOTS, torch.float32, CPU)


def lay_out(pool: StatePool, rows: list[Row], *, trees: bool) -> RecurrentPass:
    width = max(len(row.parents) for row in rows)
    parents = torch.tensor([row.parents + [-1] * (width - len(row.parents)) for row in rows])
    columns = [[row.slot, row.num_known, len(row.parents)] for row in rows]
    slots, known, drafts = torch.tensor(columns).unbind(1)
    of_trees = parents.long().view(len(rows), -1) if trees else None
    return RecurrentPass(pool, slots, known, drafts, of_trees)


def settle(recurrent: RecurrentPass, rows: list[Row], *, trees: bool) -> None:
    """Settles as the verdict says it: paths are padded, and chains have none."""
    width = max(len(row.parents) for row in rows)
    padded = [row.accepted + [0] * (width - len(row.accepted)) for row in rows]
    path = torch.tensor(padded).long().view(len(rows), -1) if trees else None
    recurrent.settle(path, torch.tensor([len(row.accepted) for row in rows]))


@dataclass
class Tokens:
    """Inputs of the tokens of a pass, for all layers."""

    inputs: torch.Tensor
    delta: DeltaTokens

    @classmethod
    def random(cls, number: int, seed: int) -> "Tokens":
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(number, *shape, generator=generator)

        delta = DeltaTokens(
            normal(KEY_HEADS, KEY_DIM),
            normal(KEY_HEADS, KEY_DIM),
            normal(HEADS, VALUE_DIM),
            normal(HEADS).sigmoid(),
            normal(HEADS).sigmoid(),
        )
        return cls(normal(CHANNELS), delta)

    def select(self, tokens: Sequence[int]) -> "Tokens":
        return Tokens(self.inputs[list(tokens)], self.delta.select(torch.tensor(list(tokens))))


WEIGHT = torch.randn(CHANNELS, WIDTH, generator=torch.Generator().manual_seed(3))
BIAS = torch.randn(CHANNELS, generator=torch.Generator().manual_seed(4))


def run(recurrent: RecurrentPass, tokens: Tokens) -> list[torch.Tensor]:
    """Runs all layers; returns their outputs of all tokens."""
    outputs = []
    for layer, spec in SPECS.items():
        # Each layer has its own inputs.
        inputs = tokens.inputs * (1 + layer)
        outputs.append(convolve(recurrent, layer, inputs, WEIGHT, BIAS))
        if spec.heads:
            delta = tokens.delta._replace(values=tokens.delta.values * (1 + layer))
            outputs.append(run_delta_rule(recurrent, layer, delta))
    return outputs


def states_of(pool: StatePool, slot: int) -> list[torch.Tensor]:
    """All states of a slot, to change."""
    parts = [part for group in pool.groups for part in (group.inputs, group.matrices)]
    return [part[:, slot] for part in parts if part is not None]
