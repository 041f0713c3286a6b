"""Follows the prediction until the first difference, and is silent from there on."""

from array import array

from optimist_proposer.core.algorithm import Algorithm, Progress
from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.follow import num_following
from optimist_proposer.core.prediction import Prediction


class ExactAlgorithm(Algorithm):
    """The baseline: what a prediction is worth without re-alignment."""

    def observe(self, prediction: Prediction, cursor: Cursor, token_ids: "array[int]") -> Progress:
        """See `Algorithm.observe`."""
        cursor.num_known += len(token_ids)
        if cursor.offset == LOST:
            return Progress(0, 0, 0)
        count = num_following(prediction, cursor.offset, token_ids, 0)
        if count == len(token_ids):
            cursor.offset += count
            return Progress(0, 0, 0)
        cursor.offset = LOST
        return Progress(0, 0, 1)
