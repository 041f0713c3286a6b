"""What was proposed for a request, while its output goes through it, and names for positions."""

from bisect import bisect_right
from enum import Enum

from optimist_cli.explain.log import NO_PARENT, NO_POSITION, Prediction, Proposal


class Origin(Enum):
    """Where an output token came from."""

    PREDICTION = "predicted"
    PROMPT = "from the prompt"
    OWN_TEXT = "own text"
    MODEL = "model's own"


class Window:
    """A tree of proposed tokens and how far the output has come in it.

    Attributes:
        num_contradicted: Nodes in whose place the output has something else, and all after those.
        expected_position: Position in the predictions of what is next on the likeliest path, or
            would be if the window were longer; None where nothing is predicted.
        num_nodes: Nodes of the tree.
        start: First position in the predictions on the likeliest path; None if it has none.
        num_before_start: Nodes before that on the path.
        num_turns: Times that the output took another branch than the likeliest.
        is_left: Whether the output has left the tree where something was proposed.
    """

    def __init__(self, proposal: Proposal) -> None:
        parents, self._positions = proposal.parents, proposal.positions
        self.num_nodes = len(parents)
        self._children: list[dict[int, int]] = [{} for _ in range(self.num_nodes + 1)]
        for node, parent in enumerate(parents):
            self._children[parent].setdefault(proposal.token_ids[node], node)
        # The last is the root's.
        self._num_below = [0] * (self.num_nodes + 1)
        for node in reversed(range(self.num_nodes)):
            self._num_below[parents[node]] += self._num_below[node] + 1
        self._node = NO_PARENT
        self.num_contradicted = 0
        self.num_turns = 0
        self.is_left = False
        self.start, self.num_before_start = self._first_position()
        self.expected_position = self.start

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

    def _first_position(self) -> tuple[int | None, int]:
        """Returns the first position on the likeliest path, and how many nodes come before it."""
        node, num_before = NO_PARENT, 0
        while self._children[node]:
            node = next(iter(self._children[node].values()))
            if self._positions[node] >= 0:
                return self._positions[node], num_before
            num_before += 1
        return None, num_before


class LineIndex:
    """Names the lines of predictions, and the tokens of the prompt."""

    def __init__(self, predictions: list[Prediction], num_prompt_tokens: int = 0) -> None:
        self._lines: list[tuple[int, int]] = []
        """Prediction and line, both from 1 on; line 0 for all that the log has left out."""
        self._starts: list[int] = []
        self._num_tokens = 0
        for number, prediction in enumerate(predictions, 1):
            start = self._num_tokens
            for line_number, line in enumerate(prediction.lines, 1):
                self._add(line.position, number, line_number)
                start = line.position + len(line.token_ids)
            if len(prediction.lines) < prediction.num_lines:
                self._add(start, number, 0)
            self._num_tokens += prediction.num_tokens
        self._is_single = len(predictions) < 2
        self._total = predictions[0].num_lines if len(predictions) == 1 else 0
        self._num_prompt_tokens = num_prompt_tokens

    def _add(self, start: int, prediction: int, line: int) -> None:
        # No log makes the starts descend, whatever it says.
        self._starts.append(max(start, self._starts[-1]) if self._starts else start)
        self._lines.append((prediction, line))

    def line(self, position: int) -> tuple[int, int]:
        """Returns prediction and line of a position, both from 1 on; 0 if unknown."""
        index = bisect_right(self._starts, position) - 1
        return self._lines[index] if index >= 0 else (0, 0)

    def name(self, position: int, *, with_total: bool = False) -> str:
        """Returns what a position of a node is called."""
        if position == NO_POSITION:
            return "own text"
        if position < NO_POSITION:
            return f"token {self._num_prompt_tokens + position - NO_POSITION + 1} of the prompt"
        if position >= self._num_tokens:
            return "the end"
        prediction, line = self.line(position)
        if not line:
            return "an unknown line"
        total = f" of {self._total}" if with_total and self._total else ""
        return f"line {line}{total}" if self._is_single else f"prediction {prediction}, line {line}"
