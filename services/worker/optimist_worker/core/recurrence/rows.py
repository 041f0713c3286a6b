"""The rows of a pass as recurrent layers see them, and how their drafts are taken back."""

import numpy as np
import torch
from torch import Tensor

from optimist_worker.core.recurrence.scan import REPLAY, Updates
from optimist_worker.core.recurrence.states import Group, StatePool
from optimist_worker.core.recurrence.walk import Integers, Walk, walk_paths, walk_trees


class RecurrentPass:
    """Rows of known tokens, each with a chain or a tree of drafts after them.

    While a layer computes, its states move over the known tokens and stay there. Of drafts it keeps
    what moves them: inputs, keys and updates, which is less than a state. When it is known which
    drafts were accepted, `settle` moves the states over these, by the operations that would have
    moved them over known tokens, so that not a bit depends on what was drafted.
    """

    def __init__(
        self,
        pool: StatePool,
        slots: Tensor,
        num_known: Tensor,
        num_drafts: Tensor,
        parents: Tensor | None,
    ) -> None:
        """Lays rows out as they follow one another in a pass; reads sizes to the host.

        Slots, known tokens and drafts are int64 `[num_rows]`. Parents of drafts are `[num_rows,
        width]`, of which each row's first `num_drafts` count; None for chains.
        """
        self.pool, device = pool, pool.device
        self._slots, known, drafts = (_read(each) for each in (slots, num_known, num_drafts))
        lengths = known + drafts
        starts = np.cumsum(lengths) - lengths
        self._firsts = starts + known
        self.known = walk_paths(self._slots, starts, known, None, device)
        """Known tokens of the rows that have some."""
        nodes = None if parents is None else parents.tolist()
        self.drafts: Walk
        """Drafts of the rows that have some."""
        if nodes is None:
            self.drafts = walk_paths(self._slots, self._firsts, drafts, None, device)
        else:
            self.drafts = walk_trees(self._slots, self._firsts, drafts, nodes, device)
        self._before = _predecessors(starts, known, drafts, nodes)
        self._taps: dict[int, Tensor] = {}
        self._is_run = torch.from_numpy(known > 0)
        self._last = torch.from_numpy(self._firsts - 1).to(device)
        self.slots = slots
        """Of all rows, int64 `[num_rows]`."""
        self.inputs: dict[int, Tensor] = {}
        """Inputs of each layer's convolution, `[num_drafts, num_channels]`, in the walk's order."""
        self.updates: dict[int, Updates] = {}
        """Of each layer with matrices."""

    @property
    def has_drafts(self) -> bool:
        """Whether a row has drafts."""
        return bool(self.drafts.levels)

    @property
    def last_known(self) -> tuple[Tensor, Tensor]:
        """The rows that have known tokens, and the last of these, int64 `[num_such_rows]` each."""
        rows = self._is_run.nonzero()[:, 0].to(self._last.device)
        return rows, self._last[rows]

    def taps(self, width: int) -> Tensor:
        """Returns what a convolution reads for each token, int64 `[num_tokens, width]`.

        They are indices into the last inputs of all rows, `width - 1` each, followed by those of
        the pass: the inputs of the token and of those before it on its path, itself last.
        """
        if width not in self._taps:
            num_inputs, (row_of, before) = width - 1, self._before
            num_rows = len(self._slots)
            # Index of what comes before each of the inputs; nobody asks before the first ones.
            first = num_rows * num_inputs
            earlier = np.arange(-1, first - 1)
            own = np.where(before < 0, (row_of + 1) * num_inputs - 1, first + before)
            previous = np.concatenate([earlier, own])
            taps = np.empty((len(own), width), np.int64)
            taps[:, -1] = first + np.arange(len(own))
            for column in range(width - 2, -1, -1):
                taps[:, column] = previous[taps[:, column + 1]]
            self._taps[width] = torch.from_numpy(taps).to(self._last.device)
        return self._taps[width]

    def settle(self, path: Tensor | None, num_accepted: Tensor) -> None:
        """Moves the states over accepted drafts.

        Those are the first `num_accepted` (`[num_rows]`) nodes of each path, int64 `[num_rows,
        width]`; None for chains.
        """
        if not self.has_drafts:
            return
        nodes = None if path is None else _read(path)
        device = self._last.device
        walk = walk_paths(self._slots, self._firsts, _read(num_accepted), nodes, device)
        if not walk.levels:
            return
        place = torch.empty(len(self._before[0]), dtype=torch.int64, device=device)
        place[self.drafts.tokens] = torch.arange(len(self.drafts.tokens), device=device)
        accepted = place[walk.tokens]
        for group in self.pool.groups:
            self._settle_inputs(group, walk, accepted)
            if group.matrices is not None:
                self._settle_matrices(group.matrices, group.layers, walk, accepted)

    def _settle_inputs(self, group: Group, walk: Walk, accepted: Tensor) -> None:
        """Shifts accepted inputs into the last inputs of each slot."""
        found = group.inputs[:, walk.slots]
        number, num_inputs = found.shape[1:3]
        if not num_inputs:
            return
        taken = torch.stack([self.inputs[layer] for layer in group.layers])[:, accepted]
        every = torch.cat([found.flatten(1, 2), taken], 1)
        first = number * num_inputs
        rows = np.arange(first).reshape(number, num_inputs)
        for level in walk.levels:
            count = level.span.stop - level.span.start
            rows[:count, :-1] = rows[:count, 1:]
            rows[:count, -1] = first + np.arange(level.span.start, level.span.stop)
        indices = torch.from_numpy(rows).to(every.device)
        group.inputs[:, walk.slots] = every[:, indices]

    def _settle_matrices(
        self, matrices: Tensor, layers: list[int], walk: Walk, accepted: Tensor
    ) -> None:
        """Moves the matrices of all layers at once."""
        parts = zip(*(self.updates[layer] for layer in layers), strict=True)
        REPLAY(matrices, Updates(*(torch.stack(part)[:, accepted] for part in parts)), walk)


def _read(column: Tensor) -> Integers:
    values: Integers = column.cpu().numpy()
    return values


def _predecessors(
    starts: Integers, known: Integers, drafts: Integers, parents: list[list[int]] | None
) -> tuple[Integers, Integers]:
    """Returns each token's row and the token before it, -1 for a row's first, `[num_tokens]`."""
    lengths = known + drafts
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    before = np.arange(len(row_of)) - 1
    before[starts[lengths > 0]] = -1
    if parents is not None:
        for row in np.flatnonzero(drafts).tolist():
            first, number = starts[row] + known[row], drafts[row]
            # Node -1 is the last known token.
            before[first : first + number] = first + np.array(parents[row][:number])
    return row_of, before
