"""What the output of each slot is expected to be: a tree of tokens, and where in it the output is.

The output is at one index of its window, and what comes after that index is left of it. Index 0 is
nowhere: where a window is that has nothing to offer. Index 1 is the root, after which the nodes
without a parent come; the nodes follow in their order. Numbered depth first, whatever comes after a
index has one span of numbers (Dietz, "Maintaining order in a linked list", 1982), so that two
comparisons find what is left of a tree once the output has taken a path.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from optimist_common.drafts import DraftSource, TokenTree
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import MOST_WINDOW_NODES, WindowUpdate
from optimist_worker.core.transfers import send

NOWHERE = 0
ROOT = 1
FIRST_NODE = 2
"""Index of node 0."""
NUM_INDICES = FIRST_NODE + MOST_WINDOW_NODES
_NO_DEPTH = -(2**40)
"""Of what is no node that the output can be at."""

Array = npt.NDArray[np.int64]


def lay_out_window(update: WindowUpdate, vocab_size: int) -> Array:
    """Lays a window out: key, number, last number after it and depth of each index.

    A node whose token is not one of `vocab_size`, or a sibling before it has, is left out with
    everything after it. The key is parent index * vocab_size + token, by which an index is found in
    one comparison. What is not in use is 0 but for its depth, which is less than any. Shape
    `[4, NUM_INDICES]`.
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
    layout = np.zeros((4, NUM_INDICES), np.int64)
    layout[3] = _NO_DEPTH
    layout[:, ROOT] = 0, 0, len(nodes), 0
    indices = FIRST_NODE + nodes
    layout[0, indices] = (parents[nodes] + FIRST_NODE) * vocab_size + tokens[nodes]
    if tree.parents is None:
        layout[1, indices], layout[2, indices] = nodes + 1, len(nodes)
    else:
        layout[1:3, indices] = _span(parents, is_used)[:, nodes]
    layout[3, indices] = tree.count_depths()[nodes]
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


class WindowDrafts(NamedTuple):
    """Drafts from windows."""

    drafts: Drafts
    indices: torch.Tensor | None
    """Where in its window each draft lies, int64 `[num_rows, width]`; None if all are chains."""
    drafter_limits: torch.Tensor
    """Most drafts of rows that have none from their windows, int64 `[num_rows]`."""


class WindowTable:
    """Windows of all slots; row `num_slots` is the one for padding."""

    def __init__(self, table: SlotTable, vocab_size: int) -> None:
        """Makes a table of empty windows; tokens are 0 to `vocab_size - 1`."""
        self.table, self.vocab_size = table, vocab_size
        num_rows = len(table.token_ids)
        # Key, number and last number of each index.
        self.indices = torch.zeros(
            (3, num_rows, NUM_INDICES), dtype=torch.int64, device=table.device
        )
        # The index where the output is, its number and last number.
        self.here = torch.zeros((3, num_rows), dtype=torch.int64, device=table.device)
        self.most_drafts = torch.zeros(num_rows, dtype=torch.int64, device=table.device)

    def clear(self, slot: int) -> None:
        """Forgets a slot's window, once the table's writes are flushed."""
        self.table.writes.put(self.here[:, slot], [0, 0, 0])

    def set(self, updates: Sequence[WindowUpdate]) -> None:
        """Replaces windows of at most MOST_WINDOW_NODES nodes, parents first, of a slot each.

        What an output already contradicts has nothing to offer.
        """
        layouts = np.empty((len(updates), 4 * NUM_INDICES + 3), np.int64)
        for layout, update in zip(layouts, updates, strict=True):
            layout[:-3] = lay_out_window(update, self.vocab_size).ravel()
            most = MOST_TREE_NODES if update.parents else MOST_WINDOW_NODES
            layout[-3:] = update.slot, update.base, most
        SET_WINDOWS(send(torch.from_numpy(layouts), self.table.device), updates, self)

    def draft(
        self,
        slots: torch.Tensor,
        limits: torch.Tensor,
        drafter_limits: torch.Tensor,
        width: int,
        *,
        has_trees: bool,
    ) -> WindowDrafts:
        """Drafts the first nodes of what is left of windows, at most `limits` (`[num_rows]`).

        Where that is nothing, `drafter_limits` hold. No limit is above `width`, which the host
        knows; of a tree MOST_TREE_NODES are drafted at most. `has_trees` says whether any of the
        windows may be no chain.
        """
        drafted: WindowDrafts = DRAFT_WINDOWS(
            slots, limits, drafter_limits, self, width, has_trees=has_trees
        )
        return drafted

    def reindex(
        self, slots: torch.Tensor, indices: torch.Tensor | None, base: torch.Tensor
    ) -> torch.Tensor:
        """Returns indices of drafts that have taken the place of those that `draft` has returned.

        `base` says which of these each is, -1 for none, int64 `[num_rows, width]`.
        """
        if indices is None:
            moved = self.here[0, slots][:, None] + 1 + base
        else:
            moved = indices.gather(1, base.clamp(0, max(indices.shape[1] - 1, 0)))
        return torch.where(base >= 0, moved, NOWHERE)

    def count_left(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns how many nodes come after the output, `[num_rows]`."""
        _, first, last = self.here.index_select(1, slots)
        return last - first

    def follow(
        self,
        slots: torch.Tensor,
        indices: torch.Tensor | None,
        verdict: Verdict,
        number: torch.Tensor,
    ) -> torch.Tensor:
        """Moves on by a pass: along the accepted drafts, and by the token after them.

        `indices` are those that `draft` has returned, and each row has emitted `number` tokens.
        Padding may name the last slot several times.

        Returns indices in the windows of the node at which each row was, -1 for none, and after it
        of its accepted drafts, `[num_rows, 1 + width]`; they count where drafts are the window's.
        """
        here, first, last = self.here.index_select(1, slots)
        passed = _find_passed(here, indices, verdict)
        accepted = verdict.num_accepted[:, None]
        reached = passed.gather(1, accepted)
        # Where nothing is left, what was accepted was not the window's.
        reached = torch.where((last > first)[:, None], reached, NOWHERE)
        wanted = reached * self.vocab_size + verdict.token_ids.gather(1, accepted)
        # Index 0 has the least key there is, so it is what a token leads to that does not go on.
        found = (self.indices[0].index_select(0, slots) == wanted).view(torch.uint8).argmax(1)
        self.move(slots, torch.where(number > 0, found, here))
        return passed - FIRST_NODE

    def find_output(self, slots: torch.Tensor, base: int, layout: torch.Tensor) -> torch.Tensor:
        """Returns the index at which the output is in a window of one slot, `[1]`.

        The window begins after output position `base`; its layout is without unused indices.
        """
        keys, numbers, last, depths = layout
        columns = self.table.gather(slots)
        begin = columns.num_prompt_tokens + base
        said = self.table.read_tokens(slots, (begin + depths - 1)[None])[0]
        is_wrong = ((said != keys % self.vocab_size) & (depths > 0)).long()
        # A fault counts for all numbers from the node's own to the last one after it.
        faults = is_wrong.new_zeros(len(keys) + 1)
        faults.index_add_(0, numbers, is_wrong).index_add_(0, last + 1, is_wrong, alpha=-1)
        is_said = faults.cumsum(0)[numbers] == 0
        is_here = is_said & (depths == columns.num_tokens - begin)
        return is_here.view(torch.uint8).argmax(0, keepdim=True)

    def move(self, slots: torch.Tensor, indices: torch.Tensor) -> None:
        """Notes at which index of its window each output is, `[num_rows]`."""
        spans = self.indices[1:, slots, indices]
        self.here.index_copy_(1, slots, torch.cat([indices[None], spans]))


def set_windows(
    layouts: torch.Tensor, updates: Sequence[WindowUpdate], windows: WindowTable
) -> None:
    """Replaces windows by what `lay_out_window` has returned, and finds where their outputs are.

    After each layout come slot, base and most drafts, int64 `[num_windows, 4 * NUM_INDICES + 3]`.
    """
    for columns, update in zip(layouts, updates, strict=True):
        slot, layout = update.slot, columns[:-3].view(4, NUM_INDICES)
        windows.indices[:, slot] = layout[:3]
        windows.most_drafts[slot] = columns[-1]
        row = torch.full((1,), slot, device=layouts.device)
        used = layout[:, : FIRST_NODE + len(update.token_ids)]
        windows.move(row, windows.find_output(row, update.base, used))


def draft_windows(
    slots: torch.Tensor,
    limits: torch.Tensor,
    drafter_limits: torch.Tensor,
    windows: WindowTable,
    width: int,
    *,
    has_trees: bool,
) -> WindowDrafts:
    """Is `WindowTable.draft`."""
    index, first, last = windows.here.index_select(1, slots)
    offsets = torch.arange(width, device=slots.device)
    if not has_trees:
        number = torch.minimum(limits, last - first)
        indices = (index[:, None] + 1 + offsets).clamp(max=NUM_INDICES - 1)
        tokens = windows.indices[0][slots[:, None], indices] % windows.vocab_size
        drafts = Drafts(tokens, number, _sources(number))
        return WindowDrafts(drafts, None, drafter_limits * (number == 0))
    limits = torch.minimum(limits, windows.most_drafts[slots])
    keys, numbers = windows.indices[:2].index_select(1, slots)
    is_left = (numbers > first[:, None]) & (numbers <= last[:, None])
    counts = is_left.cumsum(1)
    # What is not drafted goes to the last column, which is cut off.
    columns = torch.where(is_left, counts - 1, width).clamp(max=width)
    every = torch.arange(NUM_INDICES, device=slots.device).expand_as(columns)
    indices = columns.new_zeros((len(slots), width + 1)).scatter_(1, columns, every)[:, :width]
    drafted = keys.gather(1, indices)
    # Nothing before what is left is left itself, so the index of the output counts as -1.
    parents = counts.gather(1, drafted // windows.vocab_size) - 1
    number = torch.minimum(limits, last - first)
    drafts = Drafts(drafted % windows.vocab_size, number, _sources(number), parents)
    return WindowDrafts(drafts, indices, drafter_limits * (number == 0))


_ROOM = "optimist_worker.core.batch.window_kernel"
SET_WINDOWS = Operation("set_windows", set_windows, f"{_ROOM}:set_windows")
DRAFT_WINDOWS = Operation("draft_windows", draft_windows, f"{_ROOM}:draft_windows")


def _find_passed(
    here: torch.Tensor, indices: torch.Tensor | None, verdict: Verdict
) -> torch.Tensor:
    """Returns where rows were, and the indices of accepted drafts, `[num_rows, 1 + width]`."""
    offsets = torch.arange(verdict.token_ids.shape[1], device=here.device)
    if indices is None:
        return here[:, None] + offsets
    nodes = offsets[:-1].expand(len(here), -1) if verdict.path is None else verdict.path
    drafted = indices.gather(1, nodes.clamp(max=indices.shape[1] - 1))
    return torch.cat([here[:, None], drafted], 1)


def _sources(number: torch.Tensor) -> torch.Tensor:
    return torch.where(number > 0, int(DraftSource.PREDICTION), 0)
