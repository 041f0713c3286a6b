"""Where tokens of the predictions stand in what the client sent."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

NOT_PREDICTED = -1
"""Position of a draft that stands in no prediction."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tokens of an answer stand in one of the request's predictions, or in its prompt."""

    index: int | None
    """Which prediction of the request's list, or which message of its conversation; None in a
    prompt that is none, and for what stands in no message."""
    start: int
    """Where the place begins: in characters of a text, in tokens of a list of tokens."""
    end: int
    """Where it ends, exclusive."""
    is_in_tokens: bool = False
    is_in_prompt: bool = False


@dataclass(frozen=True, slots=True)
class SentPrediction:
    """One prediction of a request, as it is sent to the scheduler."""

    index: int
    """Which one of the request's list it is."""
    token_ids: list[int]
    spans: list[tuple[int, int]] | None = None
    """The characters of its text, with line endings LF, that each token stands for,
    `[num_tokens]`; None if it was given as tokens, or if nobody asks."""


def joined_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the characters of each token so that none is left out and none is told twice.

    Tokenizers may leave the spaces of a token out of its span, and give each of the tokens that
    make up a character the whole of it; here the first of these gets it.

    Args:
        spans: Where the text of each token begins and ends, `[num_tokens]`.
    """
    ends = list(accumulate((end for _, end in spans), max, initial=0))
    return list(pairwise(ends))


class PredictionPlaces:
    """Turns positions in all predictions, one after the other, into places."""

    def __init__(self, predictions: Sequence[SentPrediction]) -> None:
        """Takes the predictions in the order in which they are sent."""
        self._predictions = predictions
        lengths = (len(prediction.token_ids) for prediction in predictions)
        self._starts = list(accumulate(lengths, initial=0))

    def is_next(self, position: int, following: int) -> bool:
        """Tells whether one position follows another in the same prediction."""
        return position >= 0 and following == position + 1 and following not in self._starts

    def place(self, first: int, num_tokens: int) -> Place | None:
        """Returns where tokens from a position on stand; None if they stand in no prediction."""
        number = bisect_right(self._starts, first) - 1
        if first < 0 or number >= len(self._predictions):
            return None
        prediction = self._predictions[number]
        start = first - self._starts[number]
        end = min(start + num_tokens, len(prediction.token_ids))
        if prediction.spans is None:
            return Place(prediction.index, start, end, is_in_tokens=True)
        return Place(prediction.index, prediction.spans[start][0], prediction.spans[end - 1][1])
