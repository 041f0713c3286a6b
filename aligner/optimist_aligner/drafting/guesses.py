"""Candidates without agreeing tokens before them: near a lost offset, frequent and common ones."""

from collections.abc import Iterable, Mapping
from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from optimist_aligner.drafting.candidates import (
    Candidate,
    View,
    class_row,
    lost_bucket,
)
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.common import Common
from optimist_aligner.model.layout import (
    AHEAD,
    COMMON,
    EXPECTED,
    FREQUENT,
    MOST_AHEAD,
    NEAR,
    NUM_AHEAD,
    NUM_COUNTS,
    NUM_LOST,
    START,
    TEMPLATE,
)
from optimist_aligner.text.token_class import NEWLINE

_MOST_TEMPLATE_AHEAD: Final = 10
_MOST_LINES: Final = 3
_MOST_LINE_TOKENS: Final = 200
_MOST_RECENT: Final = 24
"""Tokens of the output; below 2 ** (NUM_COUNTS - 1), so that each has a bucket of its age."""

_MOST_COUNT: Final = 1 << (NUM_COUNTS - 2)
"""What is at least that has the last bucket."""

_AHEAD: Final = START["ahead"]
_SAME_CLASS: Final = START["same_class"]
_NEXT_LINE: Final = START["next_line"]
_TEMPLATE_AHEAD: Final = START["template_ahead"]
_TEMPLATE_SAME_CLASS: Final = START["template_same_class"]
_COUNT: Final = START["count"]
_AGE: Final = START["age"]


def guess_beginning(view: View, starts: list[int]) -> list[Candidate]:
    """Returns the first token of each prediction."""
    row = class_row(EXPECTED, view.last_class)
    candidates: list[Candidate] = []
    for offset in starts:
        token_id = view.text.ids[offset]
        if token_id >= 0:
            candidate = Candidate(token_id, EXPECTED, 0, offset)
            candidate.add_three(view, _AHEAD + AHEAD[0], _SAME_CLASS, row + view.classes[token_id])
            candidates.append(candidate)
    return candidates


def guess_ahead(view: View, taken: set[int]) -> list[Candidate]:
    """Returns what stands where the offset in the prediction was lost, and after it.

    Args:
        view: What is looked at.
        taken: Offsets that are candidates already.
    """
    alignment, ids = view.alignment, view.text.ids
    candidates: list[Candidate] = []
    if not alignment.num_lost:
        return candidates
    start, lost = alignment.lost_at, lost_bucket(alignment.num_lost)
    same = view.compare_classes(start, alignment.num_lost)
    row, aheads = class_row(EXPECTED, view.last_class), _AHEAD + lost * NUM_AHEAD
    nears, classes = _SAME_CLASS + lost * 3 + same, view.classes
    end = min(start + MOST_AHEAD, view.num_aligned)
    for offset in range(start, end):
        token_id, ahead = ids[offset], offset - start
        if token_id < 0:
            break
        if not _has(ids, start, offset, token_id) and offset not in taken:
            candidate = Candidate(token_id, EXPECTED, 0, offset)
            candidate.add_three(
                view,
                aheads + AHEAD[ahead],
                nears + NEAR[ahead] * NUM_LOST * 3,
                row + classes[token_id],
            )
            candidates.append(candidate)
    if view.last_class == NEWLINE:
        candidates += _guess_lines(view, taken)
    return candidates


def guess_template(view: View) -> list[Candidate]:
    """Returns what stands where the offset in the earlier output was lost, and after it."""
    template, ids = view.template, view.text.ids
    candidates: list[Candidate] = []
    if not template.num_lost or template.lost_at < 0:
        return candidates
    lost, start = lost_bucket(template.num_lost), template.lost_at
    same = view.compare_classes(start, template.num_lost)
    row = class_row(TEMPLATE, view.last_class)
    for offset in range(start, min(start + _MOST_TEMPLATE_AHEAD, len(ids))):
        token_id, ahead = ids[offset], offset - start
        if _has(ids, start, offset, token_id):
            continue
        candidate = Candidate(token_id, TEMPLATE, 0, offset)
        candidate.add_three(
            view,
            _TEMPLATE_AHEAD + lost * NUM_AHEAD + AHEAD[ahead],
            _TEMPLATE_SAME_CLASS + (NEAR[ahead] * NUM_LOST + lost) * 3 + same,
            row + view.classes[token_id],
        )
        candidates.append(candidate)
    return candidates


def guess_frequent(
    view: View, frequent: Iterable[int], counts: Mapping[int, int]
) -> list[Candidate]:
    """Returns the latest tokens of the output and the most frequent ones of the sources.

    Args:
        view: What is looked at.
        frequent: The most frequent tokens of the sources.
        counts: How often the sources have each token.
    """
    end = len(view.text)
    start = max(view.start, end - _MOST_RECENT)
    recent = list(view.text.ids[start:])
    latest = dict(zip(recent, range(start, end), strict=True))
    row = class_row(FREQUENT, view.last_class)
    classes, output = view.classes, view.output
    candidates: list[Candidate] = []
    for token_id in dict.fromkeys([*reversed(recent), *frequent]):
        offset = latest.get(token_id, NOWHERE)
        count = (counts.get(token_id, 0) + output.count(token_id, _MOST_COUNT)).bit_length()
        candidate = Candidate(token_id, FREQUENT, 0, offset)
        candidate.add_three(
            view,
            _COUNT + (count if count < NUM_COUNTS else NUM_COUNTS - 1),
            _AGE + (end - offset).bit_length() if offset != NOWHERE else _AGE,
            row + classes[token_id],
        )
        candidates.append(candidate)
    return candidates


def guess_common(view: View, common: Common) -> list[Candidate]:
    """Returns what commonly follows the last tokens."""
    row, classes = class_row(COMMON, view.last_class), view.classes
    candidates: list[Candidate] = []
    for token_id, feature in common.find(list(view.text.ids[-2:]), view.last_class):
        candidate = Candidate(token_id, COMMON, 0, NOWHERE)
        candidate.add(view, feature)
        candidate.add(view, row + classes[token_id])
        candidates.append(candidate)
    return candidates


def _has(ids: vec[i32], start: i64, end: i64, token_id: int) -> bool:
    """Returns whether a token is between two offsets that are near each other."""
    offset = start
    while offset < end and ids[offset] != token_id:
        offset += 1
    return offset < end


def _guess_lines(view: View, taken: set[int]) -> list[Candidate]:
    """Returns the beginnings of the next lines after the offset of the loss."""
    alignment = view.alignment
    lost = lost_bucket(alignment.num_lost)
    row = class_row(EXPECTED, view.last_class)
    candidates: list[Candidate] = []
    offset = alignment.lost_at
    for number in range(_MOST_LINES):
        offset = _find_line(view, offset)
        if offset < 0:
            break
        token_id = view.text.ids[offset]
        if offset not in taken:
            candidate = Candidate(token_id, EXPECTED, 0, offset)
            candidate.add(view, _NEXT_LINE + number * NUM_LOST + lost)
            candidate.add(view, row + view.classes[token_id])
            candidates.append(candidate)
    return candidates


def _find_line(view: View, offset: int) -> int:
    """Returns the offset after the next line end; -1 if no prediction goes on there."""
    ids, classes = view.text.ids, view.classes
    for after in range(offset, min(offset + _MOST_LINE_TOKENS, view.num_aligned - 1)):
        if ids[after] < 0:
            return -1
        if classes[ids[after]] == NEWLINE:
            return after + 1 if ids[after + 1] >= 0 else -1
    return -1
