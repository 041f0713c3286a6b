"""The windows of slots by node, as the worker has them."""

import numpy as np

from optimist_common.drafts import NodeColumn, TokenTree
from optimist_scheduler.core.base.values import Int32Array, SlotArray, count_up
from optimist_scheduler.core.windows.window import MAX_NODES

_NO_NODE = -(2**31)
"""Position of what is no node of a window: less than any other."""


class WorkerWindows:
    """The window of each slot as the worker has it when it runs the oldest plan in flight.

    A window replaces that of its slot from the plan on that it comes with, and results come in the
    order of plans. `optimist_aligner.native` has the same, compiled.
    """

    def __init__(self, num_nodes: Int32Array) -> None:
        """Starts with no window in any slot.

        Args:
            num_nodes: Of each window, zeros [max_num_seqs].
        """
        self.num_nodes = num_nodes
        """Nodes of each window [max_num_seqs]."""
        self._positions = np.full((len(num_nodes), MAX_NODES), _NO_NODE, np.int32)
        self._parents: list[Int32Array | None] = [None] * len(num_nodes)

    def set(self, slot: int, positions: Int32Array, parents: Int32Array | None) -> None:
        """Replaces the window of a slot.

        Args:
            slot: The slot.
            positions: See `Window.positions` [num_nodes].
            parents: See `TokenTree` [num_nodes].
        """
        self._positions[slot] = _NO_NODE
        self._positions[slot, : len(positions)] = positions
        self.num_nodes[slot] = len(positions)
        self._parents[slot] = parents

    def find_positions(
        self, slots: SlotArray, counts: Int32Array, nodes: Int32Array
    ) -> Int32Array | None:
        """Returns where nodes were read from, see `Window.positions` [num_nodes].

        None if one of them is not in its window.

        Args:
            slots: Slots of the rows [num_rows].
            counts: How many of the nodes are of each row [num_rows].
            nodes: Indices in the windows of their slots, row after row [num_nodes].
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

        Args:
            slots: Slots of the rows [num_rows].
            nodes: Where in their windows the rows were, ROOT for before all nodes [num_rows].
            num_drafted: How many of the nodes after it they have drafted [num_rows].
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
