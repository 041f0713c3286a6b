"""The windows of slots: by position in the sequences, and by node as the worker has them."""

import numpy as np

from optimist_aligner import IS_COMPILED
from optimist_common.drafts import NodeColumn, TokenTree
from optimist_scheduler.core.base.values import (
    Float32Array,
    Int32Array,
    Int64Array,
    SlotArray,
    count_up,
)
from optimist_scheduler.core.windows.slot_planes import NO_PATH, Followed, SlotPlanes
from optimist_scheduler.core.windows.window import MAX_NODES, MAX_TREE_DRAFTS, Window

if IS_COMPILED:
    from optimist_aligner import native

_NO_NODE = -(2**31)
"""Position of what is no node of a window: less than any other."""


class WindowPlanes:
    """Likeliest paths as planes, by slot and position in the sequence, and the trees of windows.

    A chain is its likeliest path. Trees move on with the output.
    """

    def __init__(self, token_ids: Int32Array) -> None:
        """Starts with no window in any slot.

        Args:
            token_ids: The sequences [max_num_seqs, max_length].
        """
        # Memory that is never touched is never taken.
        shape = max_num_seqs, max_length = token_ids.shape
        self.expected = np.zeros(shape, np.int32)
        """The tokens [max_num_seqs, max_length]."""
        self.hazards_before = np.zeros(1 + max_num_seqs * max_length, np.float32)
        """Hazards of the tokens before each cell, see `cells`, by the values of windows and
        cumulated from the window's beginning on [1 + max_num_seqs * max_length]."""
        self.hazards = self.hazards_before[1:].reshape(shape)
        """The same up to each token; 0 at the last position before [max_num_seqs, max_length]."""
        self.is_valued = np.zeros(max_num_seqs, np.bool_)
        """Whether the window says values [max_num_seqs]."""
        self.num_valued = 0
        """How many slots that is."""
        self.is_tree = np.zeros(max_num_seqs, np.bool_)
        """Whether there is more than the likeliest path [max_num_seqs]."""
        self.num_side_nodes = np.zeros(max_num_seqs, np.int32)
        """Nodes that are not on the likeliest path [max_num_seqs]."""
        self._node_hazards = np.full((max_num_seqs, MAX_TREE_DRAFTS), np.inf, np.float32)
        """Cumulated hazards of the nodes of trees, never falling; infinite after the last
        [max_num_seqs, MAX_TREE_DRAFTS]."""
        self._first_cells = np.arange(max_num_seqs, dtype=np.int64) * max_length
        self._planes = (native.SlotPlanes if IS_COMPILED else SlotPlanes)(
            token_ids,
            self.expected,
            self.hazards_before,
            self._node_hazards,
            self.is_tree,
            self.num_side_nodes,
        )

    @property
    def num_trees(self) -> int:
        """Slots whose window is more than its likeliest path."""
        return len(self._planes)

    def cells(self, slots: SlotArray, positions: Int32Array) -> Int64Array:
        """Returns where positions of sequences lie in the planes, or in their tokens, flattened."""
        cells: Int64Array = self._first_cells.take(slots)
        cells += positions
        return cells

    def set(self, slot: int, window: Window, start: int, length: int) -> int:
        """Replaces the window of a slot; see `SlotPlanes.set`."""
        tree, hazards = window.tree, window.find_hazards()
        end = self._planes.set(slot, tree.token_ids, tree.parents, hazards, start, length)
        if end != NO_PATH:
            self._set_valued(slot, is_valued=end > 0 and window.has_values)
        return end

    def remove(self, slot: int) -> None:
        """Forgets the window of a slot."""
        self._planes.remove(slot)
        self._set_valued(slot, is_valued=False)

    def follow(
        self,
        slots: SlotArray,
        starts: Int32Array,
        counts: Int32Array,
        token_ids: Int32Array,
        window_ends: Int32Array,
    ) -> Followed:
        """Appends new tokens to sequences, and follows them; see `SlotPlanes.follow`."""
        followed = Followed(*self._planes.follow(slots, starts, counts, token_ids, window_ends))
        for slot in followed.lost:
            self._set_valued(slot, is_valued=False)
        return followed

    def find_hazards(
        self, slots: SlotArray, lengths: Int32Array, ends: Int32Array, most: int
    ) -> Float32Array:
        """Returns cumulated hazards of what comes next in windows [num_rows, most].

        Of a tree that are its nodes in their order. Infinite where there is nothing any more.

        Args:
            slots: Each at most once [num_rows].
            lengths: Prompt and output tokens [num_rows].
            ends: Length of each sequence at the end of its window [num_rows].
            most: How many to look at.
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

    def count_worth(
        self, slots: SlotArray, lengths: Int32Array, drafts: Int32Array, depths: Float32Array
    ) -> Int32Array:
        """Returns how many drafts have at most a given hazard, all if the window says no values.

        Args:
            slots: Each at most once [num_rows].
            lengths: Length of each sequence before the drafts [num_rows].
            drafts: Most drafts, all inside the likeliest path except those of trees [num_rows].
            depths: The hazards, cumulated [num_rows].
        """
        return self._planes.count_worth(slots, lengths, drafts, depths, self.is_valued)

    def _set_valued(self, slot: int, *, is_valued: bool) -> None:
        self.num_valued += is_valued - int(self.is_valued[slot])
        self.is_valued[slot] = is_valued


class WorkerWindows:
    """The window of each slot as the worker has it when it runs the oldest plan in flight.

    A window replaces that of its slot from the plan on that it comes with, and results come in the
    order of plans.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """Starts with no window in any slot."""
        self._positions = np.full((max_num_seqs, MAX_NODES), _NO_NODE, np.int32)
        self.num_nodes = np.zeros(max_num_seqs, np.int32)
        """Nodes of each window [max_num_seqs]."""
        self._trees: dict[int, TokenTree] = {}
        """Those that are no chains, by slot."""

    def set(self, slot: int, window: Window) -> None:
        """Replaces the window of a slot."""
        number, before = window.num_nodes, int(self.num_nodes[slot])
        positions = self._positions[slot]
        positions[:number] = window.positions
        if number < before:
            positions[number:before] = _NO_NODE
        self.num_nodes[slot] = number
        if window.tree.parents is None:
            self._trees.pop(slot, None)
        else:
            self._trees[slot] = window.tree

    def find_positions(self, slots: SlotArray, nodes: Int32Array) -> Int32Array | None:
        """Returns where nodes were read from, see `Window.positions` [num_nodes].

        None if one of them is not in its window.

        Args:
            slots: Slot of each node [num_nodes].
            nodes: Indices in the windows of their slots [num_nodes].
        """
        if not len(nodes):
            return nodes
        # Negative numbers are large without their sign.
        if np.maximum.reduce(nodes.view(np.uint32)) >= MAX_NODES:
            return None
        positions = self._take_positions(slots, nodes)
        return None if np.minimum.reduce(positions) == _NO_NODE else positions

    def _take_positions(self, slots: SlotArray, nodes: Int32Array | NodeColumn) -> Int32Array:
        cells = slots * MAX_NODES
        cells += nodes
        return self._positions.reshape(-1).take(cells)

    def find_drafted(
        self, slots: SlotArray, nodes: Int32Array, num_drafted: Int32Array
    ) -> tuple[SlotArray, Int32Array]:
        """Returns slot and position of each draft that rows have made [num_drafts].

        Args:
            slots: Slots of the rows [num_rows].
            nodes: Where in their windows the rows were, ROOT for before all nodes [num_rows].
            num_drafted: How many of the nodes after it they have drafted [num_rows].
        """
        slot_of_draft = slots.repeat(num_drafted)
        drafted = count_up(nodes + 1, num_drafted)
        if self._trees:
            num_before = num_drafted.cumsum() - num_drafted
            for row, slot in enumerate(slots.tolist()):
                if (tree := self._trees.get(slot)) is not None:
                    first, number = int(num_before[row]), int(num_drafted[row])
                    subtree = tree.find_subtree(int(nodes[row]))[:number]
                    drafted[first : first + len(subtree)] = subtree
        return slot_of_draft, self._take_positions(slot_of_draft, drafted)
