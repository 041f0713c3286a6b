"""Follows the prediction and, after a difference, finds its place again at the ends of lines.

The algorithm of the project's founding document, exact in three points that it leaves open:

- Re-anchored, the cursor is the start of the predicted line behind the matched one, plus the part
  of the current output line that matches it. The search runs when a line is completed, before the
  tokens behind it are looked at; these then move the cursor like any others, and lose it if they
  are not what the predicted line begins with. So the cursor depends on the tokens alone, not on
  how they were divided into observations.
- A predicted line can end the alignment if it equals the output line just completed. Among several
  such lines those count for which the longest common subsequence (over lines) of the output with
  the prediction up to that line is longest; among these, the first that is not before the line
  where the cursor was lost, since output rarely goes back; if all are before it, the last.
- Without such a line the cursor stays lost until the next line is completed.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq

from optimist_proposer.core.algorithm import Algorithm, Progress
from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.follow import num_following
from optimist_proposer.core.lines import end_of_line
from optimist_proposer.core.prediction import Prediction


class LineAlgorithm(Algorithm):
    """Re-anchors at completed lines."""

    def observe(self, prediction: Prediction, cursor: Cursor, token_ids: "array[int]") -> Progress:
        """See `Algorithm.observe`."""
        cursor.num_known += len(token_ids)
        num_lines = num_alignments = num_losses = position = 0
        while position < len(token_ids):
            if cursor.offset != LOST:
                count = num_following(prediction, cursor.offset, token_ids, position)
                num_lines += _advance(prediction, cursor, count)
                position += count
                if position < len(token_ids):
                    _lose(prediction, cursor)
                    num_losses += 1
                continue
            end = end_of_line(token_ids, position, self._newline_token_ids)
            stop = end if end >= 0 else len(token_ids)
            _extend_line(prediction, cursor, token_ids[position:stop])
            position = stop
            if end >= 0:
                _complete_line(prediction, cursor)
                num_lines += 1
                num_alignments += 1
        return Progress(num_lines, num_alignments, num_losses)


def _advance(prediction: Prediction, cursor: Cursor, count: int) -> int:
    """Moves an aligned cursor by `count` tokens; returns how many lines it completed."""
    cursor.offset += count
    starts, first = prediction.line_starts, cursor.line
    last = prediction.num_complete_lines
    while cursor.line < last and starts[cursor.line + 1] <= cursor.offset:
        cursor.lines.append(prediction.identities[cursor.line])
        cursor.line += 1
    return cursor.line - first


def _lose(prediction: Prediction, cursor: Cursor) -> None:
    # An aligned output line equals the predicted one so far, so it need not be kept until now.
    start = prediction.line_starts[cursor.line]
    cursor.tail = prediction.token_ids[start : cursor.offset]
    cursor.offset = LOST


def _extend_line(prediction: Prediction, cursor: Cursor, token_ids: "array[int]") -> None:
    # A line longer than every predicted one equals none; what is beyond need not be kept.
    room = prediction.longest_line + 1 - len(cursor.tail)
    cursor.tail.extend(token_ids[: max(room, 0)])


def _complete_line(prediction: Prediction, cursor: Cursor) -> None:
    """Ends the current line and searches for its place."""
    same = prediction.find(cursor.tail)
    cursor.tail = cursor.tail[:0]
    if not same:
        return
    cursor.line = _choose(prediction, cursor, same) + 1
    cursor.lines.append(same[0])
    cursor.offset = prediction.line_starts[cursor.line]
    cursor.epoch += 1


def _choose(prediction: Prediction, cursor: Cursor, candidates: Sequence[int]) -> int:
    """Returns the candidate with the longest common subsequence before it (see above).

    Args:
        prediction: The prediction.
        cursor: With the output lines before the one just completed, and the predicted line where
            it was lost.
        candidates: Predicted lines equal to the line just completed, ascending.
    """
    if len(candidates) == 1:
        return candidates[0]

    def common(line: int) -> int:
        return LCSseq.similarity(prediction.identities[:line], cursor.lines)

    # The length never falls from one candidate to the next, so the best are the last ones.
    best = bisect_left(candidates, common(candidates[-1]), key=common)
    forward = bisect_left(candidates, cursor.line)
    return candidates[min(max(best, forward), len(candidates) - 1)]
