"""Lines for a request's log: where each predicted one begins, and how far the output's last is."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_proposer.core.lines import line_starts
from optimist_proposer.observing.record_text import token_text

MAX_LINE_CHARACTERS = 1000
"""Of a longer output line only the end is kept."""


def split_predictions(sources: Sources) -> Iterator["array[int]"]:
    """Iterates over the tokens of each prediction."""
    start = 0
    while start < sources.num_predicted:
        end = sources.token_ids.index(SEPARATOR, start)
        yield sources.token_ids[start:end]
        start = end + 1


class PredictedLines:
    """Where the lines of all predictions begin.

    Attributes:
        starts: Of each prediction, the positions in it where lines start, and its end
            [num_predictions][num_lines + 1].
    """

    __slots__ = ("_first_positions", "starts")

    def __init__(self, predictions: Sequence["array[int]"], vocabulary: Vocabulary) -> None:
        self.starts: list[array[int]] = []
        self._first_positions = array(INT32)
        num_tokens = 0
        for prediction in predictions:
            self._first_positions.append(num_tokens)
            self.starts.append(array(INT32, line_starts(prediction, vocabulary.newline_token_ids)))
            num_tokens += len(prediction)

    def place(self, position: int) -> tuple[int, int]:
        """Returns the number of the prediction and of the line in it, both from 1 on.

        Args:
            position: Counted through all predictions, before the end of the last.
        """
        prediction = bisect_right(self._first_positions, position)
        offset = position - self._first_positions[prediction - 1]
        return prediction, bisect_right(self.starts[prediction - 1], offset)

    def lines(self, prediction: int) -> Iterator[tuple[int, int]]:
        """Iterates over where the lines of a prediction (from 0 on) start and end in it."""
        return pairwise(self.starts[prediction])

    def first_position(self, prediction: int) -> int:
        """Returns the position, counted through all, at which a prediction (from 0 on) begins."""
        return self._first_positions[prediction]


class OutputLines:
    """The lines of an output as it grows.

    Attributes:
        num_known: Output tokens taken or missed so far.
    """

    __slots__ = ("_line", "_number", "_vocabulary", "num_known")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._line = ""
        self._number: int | None = 1
        self.num_known = 0

    @property
    def prefix(self) -> str:
        """The line that is not complete, or the end of it."""
        if len(self._line) <= MAX_LINE_CHARACTERS:
            return self._line
        return "\N{HORIZONTAL ELLIPSIS}" + self._line[-MAX_LINE_CHARACTERS:]

    def take(self, token_ids: "array[int]", position: int) -> list[tuple[int | None, str]]:
        """Takes output tokens; returns the lines that they complete, with their numbers from 1 on.

        Args:
            token_ids: Output tokens.
            position: Output position of the first of them. Where it does not come right behind
                what was taken, the line begins anew, and lines have no numbers any more.
        """
        if position != self.num_known:
            self._line, self._number = "", None
        self.num_known = position + len(token_ids)
        texts, newlines = self._vocabulary.token_texts, self._vocabulary.newline_token_ids
        completed = []
        for token_id in token_ids:
            # One character more than is shown tells that some are left out.
            self._line = (self._line + token_text(texts, token_id))[-MAX_LINE_CHARACTERS - 1 :]
            if token_id in newlines:
                completed.append((self._number, self.prefix))
                self._line = ""
                if self._number is not None:
                    self._number += 1
        return completed
