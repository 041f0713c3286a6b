"""What was proposed for a request, while its output goes through it."""

from enum import Enum

from optimist_cli.explain.log import NO_POSITION, Proposal

_ROOT = -1


class Origin(Enum):
    """Where an output token came from."""

    PREDICTION = "predicted"
    PROMPT = "from the prompt"
    OWN_TEXT = "own text"
    MODEL = "model's own"


class Window:
    """A tree of proposed tokens and how far the output has come in it.

    Attributes:
        num_contradicted: Nodes in whose place the output has something else, and all behind those.
        expected_position: Position in the predictions of what is next on the likeliest path, or
            would be if the window were longer; None where nothing is predicted.
        num_nodes: Nodes of the tree.
        place: First position in the predictions on the likeliest path; None if it has none.
        num_before_place: Nodes before that on the path.
        num_turns: Times that the output took another branch than the likeliest.
        is_left: Whether the output has left the tree at a place where something was proposed.
    """

    def __init__(self, proposal: Proposal) -> None:
        self._positions: list[int] = []
        self._children: dict[int, dict[int, int]] = {_ROOT: {}}
        parents: list[int] = []
        for chain in proposal.chains:
            # A branch departs behind a node before it; anything else in a log hangs at the root.
            parent = chain.behind if _ROOT <= chain.behind < len(parents) else _ROOT
            for token_id in chain.token_ids:
                node = len(parents)
                parents.append(parent)
                self._children[node] = {}
                self._children[parent].setdefault(token_id, node)
                parent = node
            self._positions.extend(chain.node_positions())
        self._num_below = [0] * (len(parents) + 1)
        for node in reversed(range(len(parents))):
            self._num_below[parents[node]] += self._num_below[node] + 1
        self._node = _ROOT
        self.num_nodes = len(parents)
        self.num_contradicted = 0
        self.num_turns = 0
        self.is_left = False
        self.place, self.num_before_place = self._first_place()
        self.expected_position = self.place

    @property
    def num_left(self) -> int:
        """Nodes that the output can still come to."""
        return 0 if self.is_left else self._num_below[self._node]

    def take(self, token_id: int) -> Origin:
        """Goes on by an output token; returns whence it came if it was a draft."""
        if self.is_left:
            return Origin.MODEL
        node = self._children[self._node].get(token_id)
        if node is None:
            return self._leave()
        self.num_contradicted += self._num_below[self._node] - self._num_below[node] - 1
        self.num_turns += node != next(iter(self._children[self._node].values()))
        self._node = node
        position = self._positions[node]
        if position < 0:
            return Origin.OWN_TEXT if position == NO_POSITION else Origin.PROMPT
        self.expected_position = position + 1
        return Origin.PREDICTION

    def _leave(self) -> Origin:
        if self._num_below[self._node]:
            self.num_contradicted += self._num_below[self._node]
            self.is_left = True
        elif self.expected_position is not None and self._positions[self._node] >= 0:
            self.expected_position += 1
        return Origin.MODEL

    def _first_place(self) -> tuple[int | None, int]:
        """Returns the first position on the likeliest path, and how many nodes come before it."""
        node, num_before = _ROOT, 0
        while self._children[node]:
            node = next(iter(self._children[node].values()))
            if self._positions[node] >= 0:
                return self._positions[node], num_before
            num_before += 1
        return None, num_before
