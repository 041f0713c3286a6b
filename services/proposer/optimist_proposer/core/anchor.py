"""Follows the prediction and, after a difference, finds its place again at the next token.

When lost, every output token is looked up in the prediction. Of the places where it occurs, the
one counts behind which most of the latest output tokens match; among equals, the one nearest to
where the cursor was lost, and rather ahead of it, since output seldom goes back. A single matching
token counts only there and a few tokens ahead. Without such a place the cursor stays lost until
the next token.

How much is proposed grows with the evidence: after e tokens that matched, the next one differs with
a probability of about 1/e, so a place found by little is tried with little, and one that holds is
trusted soon.
"""

from array import array
from bisect import bisect_left

from optimist_proposer.core.algorithm import Algorithm, Progress
from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.follow import num_following
from optimist_proposer.core.prediction import Prediction

# Longer agreement than this tells places apart no better.
MAX_MATCH = 8
# How far ahead of the place of the loss a single matching token counts.
NEAR = 8
# Tokens proposed per token that matched since the place was found.
REACH_PER_MATCH = 8
# A token that occurs oftener is looked up only this often, nearest to the place of the loss.
MAX_PLACES = 128


class AnchorAlgorithm(Algorithm):
    """Re-anchors at tokens."""

    def observe(self, prediction: Prediction, cursor: Cursor, token_ids: "array[int]") -> Progress:
        """See `Algorithm.observe`."""
        cursor.num_known += len(token_ids)
        num_alignments = num_losses = position = 0
        while position < len(token_ids):
            if cursor.offset != LOST:
                count = num_following(prediction, cursor.offset, token_ids, position)
                cursor.offset += count
                position += count
                if position == len(token_ids):
                    break
                _lose(prediction, cursor)
                num_losses += 1
            cursor.tail = cursor.tail[-MAX_MATCH + 1 :]
            cursor.tail.append(token_ids[position])
            position += 1
            _search(prediction, cursor)
            num_alignments += 1
        return Progress(0, num_alignments, num_losses)

    def reach(self, prediction: Prediction, cursor: Cursor) -> int:
        """See `Algorithm.reach`; before the first loss all of the prediction is believed."""
        if cursor.epoch == 0 or cursor.offset == LOST:
            return super().reach(prediction, cursor)
        return REACH_PER_MATCH * (cursor.offset - cursor.matched_from)


def _lose(prediction: Prediction, cursor: Cursor) -> None:
    start = max(cursor.matched_from, cursor.offset - MAX_MATCH + 1)
    cursor.tail = prediction.token_ids[start : cursor.offset]
    cursor.lost_at, cursor.offset = cursor.offset, LOST


def _search(prediction: Prediction, cursor: Cursor) -> None:
    """Moves a lost cursor behind the best place of the last output token, if there is one."""
    best, best_length, best_distance = LOST, 0, 0
    for place in _places(prediction, cursor):
        length = _match_length(prediction.token_ids, place, cursor.tail)
        ahead = place - cursor.lost_at
        if length == 1 and not 0 <= ahead <= NEAR:
            continue
        distance = ahead if ahead >= 0 else -2 * ahead
        if length > best_length or (length == best_length and distance < best_distance):
            best, best_length, best_distance = place, length, distance
    if best == LOST:
        return
    cursor.offset = best + 1
    cursor.matched_from = cursor.offset - best_length
    cursor.tail = cursor.tail[:0]
    cursor.epoch += 1


def _places(prediction: Prediction, cursor: Cursor) -> "array[int]":
    """Returns where the last output token occurs, the nearest places if there are many."""
    places = prediction.positions(cursor.tail[-1])
    if len(places) <= MAX_PLACES:
        return places
    middle = bisect_left(places, cursor.lost_at)
    first = min(max(middle - MAX_PLACES // 2, 0), len(places) - MAX_PLACES)
    return places[first : first + MAX_PLACES]


def _match_length(token_ids: "array[int]", place: int, tail: "array[int]") -> int:
    """Returns how many tokens up to `place` equal the end of `tail`; the last one does."""
    length = 1
    limit = min(len(tail), place + 1)
    while length < limit and token_ids[place - length] == tail[-1 - length]:
        length += 1
    return length
