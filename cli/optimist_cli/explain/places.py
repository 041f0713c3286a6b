"""Names for the places in predictions."""

from bisect import bisect_right

from optimist_cli.explain.log import NO_POSITION, Prediction


class LineIndex:
    """Names the lines of predictions, and the tokens of the prompt."""

    def __init__(self, predictions: list[Prediction], num_prompt_tokens: int = 0) -> None:
        lines = [
            (line.position, number, line.number)
            for number, prediction in enumerate(predictions, 1)
            for line in prediction.lines
        ]
        lines.sort()
        self._lines = lines
        self._starts = [line[0] for line in lines]
        self._is_single = len(predictions) < 2
        self._total = predictions[0].num_lines if len(predictions) == 1 else 0
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = sum(prediction.num_tokens for prediction in predictions)

    def line(self, position: int) -> tuple[int, int]:
        """Returns prediction and line of a position, both from 1 on; 0 if unknown."""
        index = bisect_right(self._starts, position) - 1
        return self._lines[index][1:] if index >= 0 else (0, 0)

    def name(self, position: int) -> str:
        """Returns what a position of a node is called."""
        if position == NO_POSITION:
            return "own text"
        if position < NO_POSITION:
            return f"token {self._num_prompt_tokens + position - NO_POSITION + 1} of the prompt"
        if position >= self._num_tokens:
            return "the end"
        return self.line_name(*self.line(position))

    def line_name(self, prediction: int, line: int, *, with_total: bool = False) -> str:
        """Returns what a line is called."""
        if not line:
            return "an unknown line"
        total = f" of {self._total}" if with_total and self._total else ""
        return f"line {line}{total}" if self._is_single else f"prediction {prediction}, line {line}"
