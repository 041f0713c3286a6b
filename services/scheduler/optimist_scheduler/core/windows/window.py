"""What a request's output is expected to go on with."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from optimist_common.drafts import NodeColumn, TokenTree
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

NO_POSITION = -1
"""Position of a node that was read neither from a prediction nor from the prompt."""


class WindowError(ValueError):
    """A window that cannot be what a request goes on with; the message names the field."""


class Weights(NamedTuple):
    """What is computed of a window once."""

    hazards: Float32Array
    """See `Window.find_hazards` [num_nodes]."""
    likeliest_path: NodeColumn
    """The first node, its first child, and so on [num_path_nodes]."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Expected tokens of one request."""

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
    _weights: list[Weights] = field(default_factory=list, init=False, repr=False)
    """What `weigh` has found."""

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

        Args:
            token_ids: Prompt and output [num_tokens].
            num_prompt_tokens: How many of them are prompt.
        """
        start = num_prompt_tokens + self.base
        if len(token_ids) < start:
            return None
        return self.pass_tokens(token_ids[start:])

    def pass_tokens(self, token_ids: Int32Array) -> "Window | None":
        """Returns what is expected after some tokens; None if they are no path of the window.

        Args:
            token_ids: What came since `base` [num_passed].
        """
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
        return self.weigh().hazards

    def weigh(self) -> Weights:
        """Returns hazards and likeliest path."""
        if not self._weights:
            self.take_weights(Weights(self._compute_hazards(), self.tree.find_likeliest_path()))
        return self._weights[0]

    def take_weights(self, weights: Weights) -> None:
        """Keeps what was computed with other windows; see `weigh_windows`."""
        self._weights.append(weights)

    def _compute_hazards(self) -> Float32Array:
        if not self.has_values:
            return self.tree.count_depths().astype(np.float32) * np.float32(PRIOR_HAZARD)
        own_hazards = -np.log(np.maximum(self.values, np.float32(LEAST_VALUE)))
        if self.tree.parents is None:
            steps = own_hazards.copy()
            steps[1:] -= own_hazards[:-1]
            np.maximum(steps, np.float32(LEAST_HAZARD), out=steps)
            hazards: Float32Array = np.cumsum(steps, dtype=np.float32)
            return hazards
        # The last elements are the root's.
        sums = [0.0] * (self.num_nodes + 1)
        own = [*own_hazards.tolist(), 0.0]
        for node, parent in enumerate(self.tree.parents.tolist()):
            sums[node] = sums[parent] + max(own[node] - own[parent], LEAST_HAZARD)
        return np.array(sums[:-1], np.float32)


NO_WINDOW = Window(
    0, TokenTree(np.empty(0, np.int32)), np.empty(0, np.int32), np.empty(0, np.float32)
)
"""Nothing is expected."""


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
