"""The windows that the worker drafts from, by node."""

import numpy as np

from optimist_common.drafts import TokenTree
from optimist_scheduler.core.values.arrays import Int32Array, SlotArray
from optimist_scheduler.core.windows.window import MAX_NODES, Window

NO_NODE = -(2**31)
"""Position of what is no node of a window."""


class WorkerWindows:
    """The window of each slot as the worker has it when it runs the oldest plan in flight.

    A window replaces that of its slot from the plan on that it comes with, and results come in the
    order of plans.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """Starts with no window in any slot."""
        self._positions = np.full((max_num_seqs, MAX_NODES), NO_NODE, np.int32)
        self.num_nodes = np.zeros(max_num_seqs, np.int32)
        """Nodes of each window [max_num_seqs]."""
        self._trees: dict[int, TokenTree] = {}
        """Those that are no chains, by slot."""

    def set(self, slot: int, window: Window) -> None:
        """Replaces the window of a slot."""
        number = window.num_nodes
        self._positions[slot, :number] = window.positions
        self._positions[slot, number : self.num_nodes[slot]] = NO_NODE
        self.num_nodes[slot] = number
        if window.tree.parents is None:
            self._trees.pop(slot, None)
        else:
            self._trees[slot] = window.tree

    def find_positions(self, slots: SlotArray, nodes: Int32Array) -> Int32Array:
        """Returns where nodes were read from, see `Window.positions` [num_nodes].

        NO_NODE for what is none.

        Args:
            slots: Slot of each node [num_nodes].
            nodes: Indices in the windows of their slots [num_nodes].
        """
        return self._positions.reshape(-1).take(slots * np.int64(MAX_NODES) + nodes)

    def find_drafted(
        self, slots: SlotArray, nodes: Int32Array, num_drafted: Int32Array
    ) -> tuple[SlotArray, Int32Array]:
        """Returns slot and position of each draft that rows have made [num_drafts].

        Args:
            slots: Slots of the rows [num_rows].
            nodes: Where in their windows the rows were, ROOT for before all nodes [num_rows].
            num_drafted: How many of the nodes after it they have drafted [num_rows].
        """
        slot_of_draft = np.repeat(slots, num_drafted)
        num_before = np.cumsum(num_drafted) - num_drafted
        drafted = np.arange(len(slot_of_draft)) + np.repeat(nodes + 1 - num_before, num_drafted)
        if self._trees:
            for row, slot in enumerate(slots.tolist()):
                if (tree := self._trees.get(slot)) is not None:
                    first, number = int(num_before[row]), int(num_drafted[row])
                    subtree = tree.find_subtree(int(nodes[row]))[:number]
                    drafted[first : first + len(subtree)] = subtree
        return slot_of_draft, self.find_positions(slot_of_draft, drafted)
