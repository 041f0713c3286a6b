"""The windows of slots: by position in their sequences, and by node as the worker has them.

`optimist_aligner.native` has the same, compiled; tests compare both.
"""

from typing import NamedTuple

import numpy as np

from optimist_common.drafts import ROOT, NodeColumn, TokenTree
from optimist_scheduler.core.base.values import (
    BoolArray,
    Float32Array,
    Int32Array,
    SlotArray,
    count_up,
)
from optimist_scheduler.core.windows.window import MAX_NODES

NO_PATH = -1
"""A window that does not go on with what its sequence has."""
_NO_NODE = -(2**31)
"""Position of what is no node of a window: less than any other."""


class Followed(NamedTuple):
    """How the tokens of a step agree with windows, as columns [num_rows]."""

    inside: Int32Array
    """New tokens inside the likeliest path."""
    num_agreed: Int32Array
    """How many of them agree with it before the first that does not."""
    estimated: Float32Array
    """Hazard of those and of that first one together, by what the window says."""
    lost: list[int]
    """Slots of trees that the output has left, or whose end it has reached."""


class SlotPlanes:
    """The sequences of slots, and what they are expected to go on with.

    In its tree, each is at the node that its output has reached.
    """

    def __init__(
        self,
        token_ids: Int32Array,
        expected: Int32Array,
        hazards_before: Float32Array,
        node_hazards: Float32Array,
        is_tree: BoolArray,
        num_side_nodes: Int32Array,
    ) -> None:
        self._token_ids = token_ids
        self._expected, self._node_hazards = expected, node_hazards
        self._hazards = hazards_before[1:].reshape(expected.shape)
        self._hazards_before = hazards_before
        self._is_tree, self._num_side_nodes = is_tree, num_side_nodes
        self._trees: dict[int, tuple[TokenTree, Float32Array]] = {}
        self._nodes: dict[int, int] = {}

    def __len__(self) -> int:
        """Slots whose window is a tree."""
        return len(self._trees)

    def set(
        self,
        slot: int,
        token_ids: Int32Array,
        parents: Int32Array | None,
        hazards: Float32Array,
        start: int,
        length: int,
    ) -> int:
        """Replaces the window of a slot.

        The window goes on after `start` prompt and output tokens; by now there are `length`.

        Returns:
            Length of the sequence at the end of the likeliest path, 0 if nothing is left;
            NO_PATH, and nothing is changed, if what came since `start` is no path of the window.
        """
        tree = TokenTree(token_ids, parents)
        path = tree.walk(self._token_ids[slot, start:length].tolist())
        if len(path) < length - start:
            return NO_PATH
        self._trees[slot], self._nodes[slot] = (tree, hazards), path[-1] if path else ROOT
        return self._show(slot, length, shows_path=True)

    def remove(self, slot: int) -> None:
        """Forgets the tree of a slot, if it has one."""
        if self._trees.pop(slot, None) is not None:
            self._is_tree[slot] = False
            self._num_side_nodes[slot] = 0

    def follow(
        self,
        slots: SlotArray,
        starts: Int32Array,
        counts: Int32Array,
        token_ids: Int32Array,
        window_ends: Int32Array,
    ) -> Followed:
        """Appends new tokens to sequences, and follows them in the windows.

        Args:
            slots: Each at most once [num_rows].
            starts: Lengths of the sequences before [num_rows].
            counts: New tokens of each row [num_rows].
            token_ids: The new tokens, row after row [num_new].
            window_ends: Lengths at the ends of the likeliest paths, by slot; changed where these
                are left, to 0 where nothing is left of the window [num_slots].
        """
        ends = counts.cumsum()
        cells = slots * self._expected.shape[1] + starts
        shifts = cells - ends + counts
        cells_of_tokens = shifts.repeat(counts) + np.arange(len(token_ids))
        self._token_ids.reshape(-1)[cells_of_tokens] = token_ids
        inside = np.clip(window_ends[slots] - starts, 0, counts)
        num_agreed = inside.copy()
        # Of several values for one row the last stays: that of its first wrong token.
        wrong = (self._expected.reshape(-1)[cells_of_tokens] != token_ids).nonzero()[0][::-1]
        rows = ends.searchsorted(wrong, side="right")
        num_agreed[rows] = np.minimum(wrong - (ends - counts)[rows], inside[rows])
        examined = np.minimum(num_agreed + 1, inside)
        hazards = self._hazards_before
        estimated = hazards.take(cells + examined) - hazards.take(cells)
        has_left = num_agreed < inside
        window_ends[slots[has_left]] = 0
        lost: list[int] = []
        for row in np.flatnonzero(self._is_tree[slots]).tolist():
            slot, count, end = int(slots[row]), int(counts[row]), int(ends[row])
            length, leaves = int(starts[row]) + count, bool(has_left[row])
            path = self._trees[slot][0].walk(
                token_ids[end - count : end].tolist(), self._nodes[slot]
            )
            if len(path) < count:
                self.remove(slot)
                window_ends[slot] = 0
            else:
                self._nodes[slot] = path[-1]
                window_end = self._show(slot, length, shows_path=leaves)
                if leaves:
                    window_ends[slot] = window_end
            if not window_ends[slot]:
                lost.append(slot)
        return Followed(inside, num_agreed, estimated, lost)

    def count_worth(
        self, slots: SlotArray, lengths: Int32Array, drafts: Int32Array, depths: Float32Array
    ) -> Int32Array:
        """Returns how many drafts have at most a given hazard [num_rows].

        All drafts are inside the likeliest path, except those of trees.
        """
        cells, hazards = slots * self._expected.shape[1] + lengths, self._hazards_before
        # Of trees, drafts may be more than there are positions; what is in flight may be assumed to
        # go on past the longest sequence.
        reach = hazards.take(cells + drafts, mode="clip") - hazards.take(cells, mode="clip")
        is_worth = reach <= depths
        if not self._trees and np.count_nonzero(is_worth) == len(is_worth):
            return drafts
        is_tree = self._is_tree[slots]
        worth = drafts.copy()
        rows = np.flatnonzero(is_tree)
        if len(rows):
            is_above = self._node_hazards[slots[rows]] <= depths[rows, None]
            worth[rows] = np.minimum(drafts[rows], np.count_nonzero(is_above, axis=1))
        rows = np.flatnonzero(~is_worth & ~is_tree)
        if len(rows):
            worth[rows] = self._count_of_chains(cells[rows], drafts[rows], depths[rows])
        return worth

    def _count_of_chains(
        self, cells: SlotArray, drafts: Int32Array, depths: Float32Array
    ) -> Int32Array:
        """Returns how many drafts from cells on have at most a given hazard [num_rows]."""
        offsets = np.arange(1, int(drafts.max()) + 1)
        most = self._hazards_before.take(cells, mode="clip") + depths
        reach = self._hazards_before.take(cells[:, None] + offsets, mode="clip")
        is_worth = reach <= most[:, None]
        is_worth &= offsets <= drafts[:, None]
        worth: Int32Array = is_worth.sum(axis=1, dtype=np.int32)
        return worth

    def _show(self, slot: int, length: int, *, shows_path: bool) -> int:
        """Writes what is after a tree's node, its likeliest path only if that is another one.

        Returns where that ends, 0 if nothing is left.
        """
        (tree, hazards), node = self._trees[slot], self._nodes[slot]
        nodes = tree.find_subtree(node)
        if node != ROOT:
            hazards = hazards - hazards[node]
        hazards = hazards[nodes]
        tree = tree.select(nodes)
        path = tree.find_likeliest_path()
        drafts = self._node_hazards[slot]
        drafts.fill(np.inf)
        drafts[: len(nodes)] = np.maximum.accumulate(hazards[: len(drafts)])
        self._is_tree[slot] = True
        self._num_side_nodes[slot] = len(nodes) - len(path)
        if len(path) == len(nodes):
            # What is left is a chain.
            self.remove(slot)
        if not len(path):
            return 0
        end = min(length + len(path), int(self._expected.shape[1]))
        if shows_path:
            path = path[: end - length]
            self._expected[slot, length:end] = tree.token_ids[path]
            self._hazards[slot, length - 1] = 0
            self._hazards[slot, length:end] = hazards[path]
        return end


class WorkerWindows:
    """The window of each slot as the worker has it when it runs the oldest plan in flight.

    A window replaces that of its slot from the plan on that it comes with, and results come in the
    order of plans.
    """

    def __init__(self, num_nodes: Int32Array) -> None:
        self.num_nodes = num_nodes
        """Nodes of each window [max_num_seqs]."""
        self._positions = np.full((len(num_nodes), MAX_NODES), _NO_NODE, np.int32)
        self._parents: list[Int32Array | None] = [None] * len(num_nodes)

    def set(self, slot: int, positions: Int32Array, parents: Int32Array | None) -> None:
        """Replaces the window of a slot."""
        self._positions[slot] = _NO_NODE
        self._positions[slot, : len(positions)] = positions
        self.num_nodes[slot] = len(positions)
        self._parents[slot] = parents

    def find_positions(
        self, slots: SlotArray, counts: Int32Array, nodes: Int32Array
    ) -> Int32Array | None:
        """Returns where nodes were read from, see `Window.positions` [num_nodes].

        None if one of them is not in its window.

        `nodes` are indices in the windows of their slots, row after row, `counts` of each row.
        """
        if ((nodes < 0) | (nodes >= MAX_NODES)).any():
            return None
        positions = self._take_positions(slots.repeat(counts), nodes)
        return None if (positions == _NO_NODE).any() else positions

    def _take_positions(self, slots: SlotArray, nodes: Int32Array | NodeColumn) -> Int32Array:
        cells = slots * MAX_NODES
        cells += nodes
        return self._positions.reshape(-1).take(cells)

    def find_drafted(
        self, slots: SlotArray, nodes: Int32Array, num_drafted: Int32Array
    ) -> tuple[SlotArray, Int32Array]:
        """Returns slot and position of each draft that rows have made [num_drafts].

        `nodes` says where in their windows the rows were, ROOT for before all.
        """
        slot_of_draft = slots.repeat(num_drafted)
        drafted = count_up(nodes + 1, num_drafted)
        num_before = num_drafted.cumsum() - num_drafted
        for row, slot in enumerate(slots.tolist()):
            if (parents := self._parents[slot]) is not None:
                first, number = int(num_before[row]), int(num_drafted[row])
                subtree = TokenTree(parents, parents).find_subtree(int(nodes[row]))[:number]
                drafted[first : first + len(subtree)] = subtree
        return slot_of_draft, self._take_positions(slot_of_draft, drafted)
