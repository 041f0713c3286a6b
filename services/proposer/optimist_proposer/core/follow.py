"""The fast path of every algorithm: the output goes on as predicted."""

from array import array

from optimist_proposer.core.prediction import Prediction


def num_following(prediction: Prediction, offset: int, token_ids: "array[int]", start: int) -> int:
    """Returns how many of `token_ids` from `start` on equal the prediction from `offset` on.

    Args:
        prediction: The prediction.
        offset: Position in the prediction.
        token_ids: New output tokens, [num_tokens].
        start: The first of them to compare.
    """
    predicted = prediction.token_ids[offset : offset + len(token_ids) - start]
    if predicted == token_ids[start:]:
        return len(predicted)
    count = 0
    for expected, token_id in zip(predicted, token_ids[start:], strict=False):
        if expected != token_id:
            break
        count += 1
    return count
