"""What a request's output is expected to go on with."""

from dataclasses import dataclass, field

import numpy as np

from optimist_aligner import IS_COMPILED
from optimist_common.drafts import TokenTree
from optimist_scheduler.core.base.values import Float32Array, Int32Array

MAX_NODES = 256
MAX_TREE_DRAFTS = 64
"""Of a window that is no chain the worker verifies no more in a pass: a node's attention mask has
64 bits."""
WINDOW_PRIOR = 0.98
"""Agreement that a new row's window is trusted with: a prediction is mostly right."""
PRIOR_HAZARD = -float(np.log(WINDOW_PRIOR))
"""Of a token of a window that says no values."""
LEAST_HAZARD = 1 / 64
"""No token is believed to be more certain than this, before it is seen that values come true."""
LEAST_VALUE = 1e-7
"""Smaller ones are taken for this."""

_READER = None
if IS_COMPILED:
    from optimist_aligner.native import WindowReader

    _READER = WindowReader(LEAST_VALUE, LEAST_HAZARD, PRIOR_HAZARD)

NO_POSITION = -1
"""Position of a node that was read neither from a prediction nor from the prompt."""


class WindowError(ValueError):
    """A window that cannot be what a request goes on with; the message names the field."""


# Not frozen, as that takes several times as long to make.
@dataclass(slots=True, eq=False)
class Window:
    """Expected tokens of one request; never changed."""

    base: int
    """Output position of the nodes that have no parent; 0 is the first generated token."""
    tree: TokenTree
    """Empty when nothing is expected."""
    positions: Int32Array
    """Position in the predictions; below NO_POSITION one in the prompt, whose last token has -2 and
    the one before it -3 [num_nodes]."""
    values: Float32Array
    """Chance that a node and all before it are what comes, never rising [num_nodes]; empty if
    nothing is said of it."""
    _hazards: Float32Array | None = field(default=None, init=False, repr=False)
    """What `find_hazards` has found."""

    @property
    def num_nodes(self) -> int:
        """Expected tokens, of all paths together."""
        return len(self.tree)

    @property
    def has_values(self) -> bool:
        """Whether it says how likely its nodes are."""
        return len(self.values) > 0

    def follow(self, token_ids: Int32Array, num_prompt_tokens: int) -> "Window | None":
        """Returns what is expected after a sequence, with chances given that sequence.

        None if the sequence has not reached the window, or is no path of it.
        """
        start = num_prompt_tokens + self.base
        if len(token_ids) < start:
            return None
        return self.pass_tokens(token_ids[start:])

    def pass_tokens(self, token_ids: Int32Array) -> "Window | None":
        """Returns what is expected after some tokens; None if they are no path of the window."""
        num_passed = len(token_ids)
        if num_passed == 0:
            return self
        path = self.tree.walk(token_ids.tolist())
        if len(path) < num_passed:
            return None
        node = path[-1]
        nodes, values = self.tree.find_subtree(node), self.values
        if self.has_values:
            value = max(float(values[node]), LEAST_VALUE)
            values = np.minimum(values[nodes] / np.float32(value), np.float32(1))
        return Window(
            self.base + num_passed, self.tree.select(nodes), self.positions[nodes], values
        )

    def find_hazards(self) -> Float32Array:
        """Returns minus the logarithm of each node's chance, as far as it is believed [num_nodes].

        It grows from a node to the next after it by `LEAST_HAZARD` at least.
        """
        if self._hazards is None:
            self._hazards = self._compute_hazards()
        return self._hazards

    def check(
        self, num_predicted_tokens: int, num_prompt_tokens: int, vocab_size: int
    ) -> str | None:
        """Returns why it cannot be of a request, see `find_window_fault`; None if it can."""
        arguments = num_predicted_tokens, num_prompt_tokens, vocab_size
        if _READER is not None and self.base >= 0 and 0 < self.num_nodes <= MAX_NODES:
            tree = self.tree
            columns = tree.token_ids, tree.parents, self.positions, self.values
            self._hazards = _READER.find_hazards(*columns, *arguments)
            if self._hazards is not None:
                return None
        return find_window_fault(self, *arguments)

    def _compute_hazards(self) -> Float32Array:
        if not self.has_values:
            return (self.tree.count_depths() * PRIOR_HAZARD).astype(np.float32)
        chances = np.maximum(self.values, np.float32(LEAST_VALUE)).astype(np.float64)
        # The last element is the root's.
        own = np.append(-np.log(chances), 0.0)
        parents = np.array(self.tree.list_parents())
        steps = np.maximum(own[:-1] - own[parents], LEAST_HAZARD)
        if self.tree.parents is None:
            hazards: Float32Array = steps.cumsum().astype(np.float32)
            return hazards
        sums = [0.0] * (self.num_nodes + 1)
        for node, (parent, step) in enumerate(zip(parents.tolist(), steps.tolist(), strict=True)):
            sums[node] = sums[parent] + step
        return np.array(sums[:-1], np.float32)


NO_WINDOW = Window(
    0, TokenTree(np.empty(0, np.int32)), np.empty(0, np.int32), np.empty(0, np.float32)
)
"""Nothing is expected."""


def find_window_fault(
    window: Window, num_predicted_tokens: int, num_prompt_tokens: int, vocab_size: int
) -> str | None:
    """Returns why a window cannot be of a request; None if it can."""
    num_nodes = window.num_nodes
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
    if int(window.tree.token_ids.view(np.uint32).max()) >= vocab_size:
        return f"token_ids: must be from 0 to {vocab_size - 1}"
    if int(window.positions.max()) >= num_predicted_tokens:
        return f"prediction_positions: must be from -1 to {num_predicted_tokens - 1}"
    if int(window.positions.min()) < NO_POSITION - num_prompt_tokens:
        return f"prompt_positions: must be from 0 to {num_prompt_tokens}"
    if window.has_values and not _are_values(window.values):
        return "values: must be from 1 down to 0, and never rise"
    return window.tree.find_fault()


def _are_values(values: Float32Array) -> bool:
    # What is no number is neither.
    return bool(values[0] <= 1 and values[-1] >= 0 and (values[1:] <= values[:-1]).all())
