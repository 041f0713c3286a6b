"""Names for positions in predictions and in the prompt."""

from bisect import bisect_right

from optimist_cli.explain.log import NO_POSITION, Prediction


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
