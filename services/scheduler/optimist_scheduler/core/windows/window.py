"""What a request's output is expected to go on with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from optimist_scheduler.core.values.arrays import Float32Array, Int32Array, Int64Array

MAX_NODES = 256
MAX_TREE_DRAFTS = 64
"""Of a window that is no chain the worker verifies no more in a pass: a node's attention mask has
64 bits."""
WINDOW_PRIOR = 0.98
"""Agreement that a new row's window is trusted with: a prediction is mostly right."""
PRIOR_HAZARD = -float(np.log(WINDOW_PRIOR))
"""Of a token of a window that says no values."""
LEAST_HAZARD = 1 / 64
"""No token is believed to be more certain than this, before it is seen that claims come true."""
LEAST_VALUE = 1e-7
"""Smaller ones are taken for this."""

_ROOT = -1
NO_POSITION = -1
"""Position of a node that was read neither from a prediction nor from the prompt."""


class WindowError(ValueError):
    """A window that cannot be what a request goes on with; the message names the field."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Expected tokens of one request: a tree of nodes, of which any beginning is a tree too."""

    base: int
    """Output position of the nodes that have no parent; 0 is the first generated token."""
    token_ids: Int32Array
    """[num_nodes]; empty when nothing is expected."""
    parents: Int32Array | None
    """Index of the node that each comes behind, -1 for none [num_nodes]; None for a chain."""
    positions: Int32Array
    """Position in the predictions; below NO_POSITION one in the prompt, whose last token has -2 and
    the one before it -3 [num_nodes]."""
    values: Float32Array
    """Chance that a node and all before it are what comes, never rising [num_nodes]; empty if
    nothing is said of it."""
    _hazards: list[Float32Array] = field(default_factory=list, init=False, repr=False)
    """What `find_hazards` has found."""

    @property
    def has_values(self) -> bool:
        """Whether it says how likely its nodes are."""
        return len(self.values) > 0

    def follow(self, token_ids: Int32Array, num_prompt_tokens: int) -> "Window | None":
        """Returns what is expected behind a sequence, with chances given that sequence.

        None if the sequence has not reached the window, or is no path of it.

        Args:
            token_ids: Prompt and output [num_tokens].
            num_prompt_tokens: How many of them are prompt.
        """
        start = num_prompt_tokens + self.base
        if len(token_ids) < start:
            return None
        return self.pass_tokens(token_ids[start:])

    def pass_tokens(self, token_ids: Int32Array) -> "Window | None":
        """Returns what is expected behind some tokens; None if they are no path of the window.

        Args:
            token_ids: What came since `base` [num_passed].
        """
        num_passed = len(token_ids)
        if num_passed == 0:
            return self
        if self.parents is None:
            if not np.array_equal(self.token_ids[:num_passed], token_ids):
                return None
            return self._behind(num_passed - 1, slice(num_passed, None), None, num_passed)
        path = self.find_path(token_ids.tolist())
        if len(path) < num_passed:
            return None
        nodes, parents = _select_subtree(self.parents.tolist(), path[-1])
        return self._behind(path[-1], np.array(nodes, np.intp), parents, num_passed)

    def find_path(self, token_ids: Sequence[int]) -> list[int]:
        """Returns the nodes that tokens pass, as far as they are a path of the window."""
        path, node = list[int](), _ROOT
        tokens = self.token_ids.tolist()
        for index, parent in enumerate(self.find_parents()):
            if len(path) == len(token_ids):
                break
            if parent == node and tokens[index] == token_ids[len(path)]:
                path.append(index)
                node = index
        return path

    def find_parents(self) -> Sequence[int]:
        """Returns the parent of each node, of a chain too."""
        if self.parents is None:
            return range(_ROOT, len(self.token_ids) - 1)
        parents: list[int] = self.parents.tolist()
        return parents

    def find_likeliest_path(self) -> Int64Array:
        """Returns the nodes that are the first behind the one before, from a root on."""
        path, node = list[int](), _ROOT
        for index, parent in enumerate(self.find_parents()):
            if parent == node:
                path.append(index)
                node = index
        return np.array(path, np.int64)

    def find_hazards(self) -> Float32Array:
        """Returns minus the logarithm of each node's chance, as far as it is believed [num_nodes].

        It grows from a node to the next behind it by `LEAST_HAZARD` at least.
        """
        if not self._hazards:
            self._hazards.append(self._compute_hazards())
        return self._hazards[0]

    def _compute_hazards(self) -> Float32Array:
        num_nodes = len(self.token_ids)
        if not self.has_values:
            return _count_depths(self) * np.float32(PRIOR_HAZARD)
        depths = -np.log(np.maximum(self.values, np.float32(LEAST_VALUE)))
        if self.parents is None:
            steps = depths.copy()
            steps[1:] -= depths[:-1]
            np.maximum(steps, np.float32(LEAST_HAZARD), out=steps)
            hazards: Float32Array = np.cumsum(steps, dtype=np.float32)
            return hazards
        sums = [0.0] * (num_nodes + 1)
        own = [*depths.tolist(), 0.0]
        for node, parent in enumerate(self.parents.tolist()):
            sums[node] = sums[parent] + max(own[node] - own[parent], LEAST_HAZARD)
        return np.array(sums[:-1], np.float32)

    def _behind(
        self, node: int, nodes: "slice | Int64Array", parents: Int32Array | None, num_passed: int
    ) -> "Window":
        """Returns the nodes behind a node."""
        values = self.values
        if self.has_values:
            value = max(float(values[node]), LEAST_VALUE)
            values = np.minimum(values[nodes] / np.float32(value), np.float32(1))
        return Window(
            self.base + num_passed,
            self.token_ids[nodes],
            parents,
            self.positions[nodes],
            values,
        )


NO_WINDOW = Window(0, np.empty(0, np.int32), None, np.empty(0, np.int32), np.empty(0, np.float32))
"""Nothing is expected."""


def make_window(
    base: int,
    token_ids: Int32Array,
    parents: Int32Array,
    positions: Int32Array,
    values: Float32Array,
) -> Window:
    """Returns a window; parents that make a chain, or none at all, are those of a chain."""
    is_chain = len(parents) == 0 or np.array_equal(parents, np.arange(-1, len(parents) - 1))
    return Window(base, token_ids, None if is_chain else parents, positions, values)


def find_window_fault(
    window: Window, num_predicted_tokens: int, num_prompt_tokens: int, vocab_size: int
) -> str | None:
    """Returns why a window cannot be of a request; None if it can.

    Args:
        window: The window.
        num_predicted_tokens: Tokens of all predictions of the request.
        num_prompt_tokens: Tokens of its prompt.
        vocab_size: Token ids are below.
    """
    num_nodes = len(window.token_ids)
    if window.base < 0:
        return f"base: must be at least 0, not {window.base}"
    if num_nodes > MAX_NODES:
        return f"token_ids: must be at most {MAX_NODES}, not {num_nodes}"
    if len(window.positions) != num_nodes:
        return f"prediction_positions: {len(window.positions)} of {num_nodes} nodes"
    if len(window.values) not in (0, num_nodes):
        return f"values: {len(window.values)} of {num_nodes} nodes"
    if num_nodes == 0:
        return None
    # Negative numbers are large without their sign.
    if int(window.token_ids.view(np.uint32).max()) >= vocab_size:
        return f"token_ids: must be from 0 to {vocab_size - 1}"
    if int(window.positions.max()) >= num_predicted_tokens:
        return f"prediction_positions: must be from -1 to {num_predicted_tokens - 1}"
    if int(window.positions.min()) < NO_POSITION - num_prompt_tokens:
        return f"prompt_positions: must be from 0 to {num_prompt_tokens}"
    if window.has_values and not _are_values(window.values):
        return "values: must be from 1 down to 0, and never rise"
    return None if window.parents is None else _find_tree_fault(window.parents, window.token_ids)


def _find_tree_fault(parents: Int32Array, token_ids: Int32Array) -> str | None:
    num_nodes = len(token_ids)
    if len(parents) != num_nodes:
        return f"parents: {len(parents)} of {num_nodes} nodes"
    if int(parents.min()) < _ROOT or (parents >= np.arange(num_nodes)).any():
        return "parents: each must be -1 or a node before its own"
    if len(set(zip(parents.tolist(), token_ids.tolist(), strict=True))) < num_nodes:
        return "parents: a node has a token twice behind it"
    return None


def _are_values(values: Float32Array) -> bool:
    # What is no number is neither.
    return bool(values[0] <= 1 and values[-1] >= 0 and (values[1:] <= values[:-1]).all())


def _select_subtree(parents: list[int], node: int) -> tuple[list[int], Int32Array | None]:
    """Returns the nodes behind a node, and their parents among them; None for a chain's."""
    places = {node: _ROOT}
    nodes, above = list[int](), list[int]()
    for index in range(node + 1, len(parents)):
        place = places.get(parents[index])
        if place is not None:
            places[index] = len(nodes)
            nodes.append(index)
            above.append(place)
    is_chain = above == list(range(_ROOT, len(above) - 1))
    return nodes, None if is_chain else np.array(above, np.int32)


def _count_depths(window: Window) -> Float32Array:
    """Returns how many nodes lead to each, itself among them [num_nodes]."""
    num_nodes = len(window.token_ids)
    if window.parents is None:
        return np.arange(1, num_nodes + 1, dtype=np.float32)
    depths = [0] * (num_nodes + 1)
    for node, parent in enumerate(window.parents.tolist()):
        depths[node] = depths[parent] + 1
    return np.array(depths[:-1], np.float32)
