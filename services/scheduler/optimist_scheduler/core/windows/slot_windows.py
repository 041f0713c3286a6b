"""The likeliest paths of windows, by slot and position in the sequence."""

import numpy as np

from optimist_aligner import IS_COMPILED
from optimist_scheduler.core.base.values import Float32Array, Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.windows import slot_planes
from optimist_scheduler.core.windows.window import MAX_TREE_DRAFTS, Window

if IS_COMPILED:
    from optimist_aligner import native

SlotPlanes = native.SlotPlanes if IS_COMPILED else slot_planes.SlotPlanes
WorkerWindows = native.WorkerWindows if IS_COMPILED else slot_planes.WorkerWindows


class WindowPlanes:
    """Likeliest paths as planes, by slot and position in the sequence, and the trees of windows.

    A chain is its likeliest path. Trees move on with the output.
    """

    def __init__(self, token_ids: Int32Array) -> None:
        # Memory that is never touched is never taken.
        shape = max_num_seqs, max_length = token_ids.shape
        self.expected = np.zeros(shape, np.int32)
        """The tokens [max_num_seqs, max_length]."""
        self.hazards_before = np.zeros(1 + max_num_seqs * max_length, np.float32)
        """Hazards of the tokens before each cell, see `cells`, by the values of windows and
        cumulated from the window's beginning on [1 + max_num_seqs * max_length]."""
        self.hazards = self.hazards_before[1:].reshape(shape)
        """The same up to each token; 0 at the last position before [max_num_seqs, max_length]."""
        self.is_tree = np.zeros(max_num_seqs, np.bool_)
        """Whether there is more than the likeliest path [max_num_seqs]."""
        self.num_side_nodes = np.zeros(max_num_seqs, np.int32)
        """Nodes that are not on the likeliest path [max_num_seqs]."""
        self._node_hazards = np.full((max_num_seqs, MAX_TREE_DRAFTS), np.inf, np.float32)
        """Cumulated hazards of the nodes of trees, never falling; infinite after the last
        [max_num_seqs, MAX_TREE_DRAFTS]."""
        self._first_cells = np.arange(max_num_seqs, dtype=np.int64) * max_length
        self.planes = SlotPlanes(
            token_ids,
            self.expected,
            self.hazards_before,
            self._node_hazards,
            self.is_tree,
            self.num_side_nodes,
        )
        """The sequences and all of the above, which only these change."""

    @property
    def num_trees(self) -> int:
        """Slots whose window is more than its likeliest path."""
        return len(self.planes)

    def cells(self, slots: SlotArray, positions: Int32Array) -> Int64Array:
        """Returns where positions of sequences lie in the planes, or in their tokens, flattened."""
        cells: Int64Array = self._first_cells.take(slots)
        cells += positions
        return cells

    def set(self, slot: int, window: Window, start: int, length: int) -> int:
        """Replaces the window of a slot; see `SlotPlanes.set`."""
        tree, hazards = window.tree, window.find_hazards()
        return self.planes.set(slot, tree.token_ids, tree.parents, hazards, start, length)

    def find_first_hazards(self, slots: SlotArray, lengths: Int32Array) -> Float32Array:
        """Returns the hazard of what comes next on likeliest paths [num_rows]."""
        cells, hazards = self.cells(slots, lengths), self.hazards_before
        firsts: Float32Array = hazards.take(cells + 1, mode="clip")
        firsts -= hazards.take(cells, mode="clip")
        return firsts

    def find_hazards(
        self, slots: SlotArray, lengths: Int32Array, ends: Int32Array, most: int
    ) -> Float32Array:
        """Returns cumulated hazards of what comes next in windows [num_rows, most].

        Of a tree that are its nodes in their order. Infinite where there is nothing any more.
        """
        offsets = np.arange(most + 1)
        cells = self.cells(slots, lengths)[:, None] + offsets
        cumulated = self.hazards_before.take(cells, mode="clip")
        hazards: Float32Array = cumulated[:, 1:] - cumulated[:, :1]
        hazards[offsets[1:] > (ends - lengths)[:, None]] = np.inf
        if self.num_trees:
            rows = np.flatnonzero(self.is_tree[slots])
            hazards[rows, :MAX_TREE_DRAFTS] = self._node_hazards[slots[rows], :most]
            hazards[rows, MAX_TREE_DRAFTS:] = np.inf
        return hazards
