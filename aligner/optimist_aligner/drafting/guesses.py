"""Candidates without agreeing tokens before them: near a lost place, frequent and common ones."""

from collections.abc import Iterable, Mapping
from typing import Final

from optimist_aligner.drafting.candidates import (
    NO_STOP,
    Candidate,
    Sight,
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

_AHEAD: Final = START["ahead"]
_SAME_CLASS: Final = START["same_class"]
_NEXT_LINE: Final = START["next_line"]
_TEMPLATE_AHEAD: Final = START["template_ahead"]
_TEMPLATE_SAME_CLASS: Final = START["template_same_class"]
_COUNT: Final = START["count"]
_AGE: Final = START["age"]


def guess_beginning(sight: Sight, starts: list[int]) -> list[Candidate]:
    """Returns the first token of each prediction."""
    row = class_row(EXPECTED, sight.last_class)
    candidates: list[Candidate] = []
    for place in starts:
        token_id = sight.text[place]
        if token_id >= 0:
            features = _AHEAD + AHEAD[0], _SAME_CLASS, row + sight.classes[token_id]
            candidates.append(Candidate(token_id, EXPECTED, 0, place, NO_STOP, NO_STOP, features))
    return candidates


def guess_ahead(sight: Sight, taken: set[int]) -> list[Candidate]:
    """Returns what stands where the place in the prediction was lost, and behind it.

    Args:
        sight: What is looked at.
        taken: Places that are candidates already.
    """
    alignment, text = sight.alignment, sight.text
    candidates: list[Candidate] = []
    if not alignment.num_lost:
        return candidates
    start, lost = alignment.lost_at, lost_bucket(alignment.num_lost)
    same = sight.compare_classes(start, alignment.num_lost)
    row, aheads = class_row(EXPECTED, sight.last_class), _AHEAD + lost * NUM_AHEAD
    nears, classes = _SAME_CLASS + lost * 3 + same, sight.classes
    seen = set()
    for ahead, token_id in enumerate(text[start : min(start + MOST_AHEAD, sight.num_aligned)]):
        if token_id < 0:
            break
        place = start + ahead
        if token_id not in seen and place not in taken:
            features = (
                aheads + AHEAD[ahead],
                nears + NEAR[ahead] * NUM_LOST * 3,
                row + classes[token_id],
            )
            candidates.append(Candidate(token_id, EXPECTED, 0, place, NO_STOP, NO_STOP, features))
        seen.add(token_id)
    if sight.last_class == NEWLINE:
        candidates += _guess_lines(sight, taken)
    return candidates


def guess_template(sight: Sight) -> list[Candidate]:
    """Returns what stands where the place in the earlier output was lost, and behind it."""
    template, text = sight.template, sight.text
    candidates: list[Candidate] = []
    if not template.num_lost or template.lost_at < 0:
        return candidates
    lost, start = lost_bucket(template.num_lost), template.lost_at
    same = sight.compare_classes(start, template.num_lost)
    row = class_row(TEMPLATE, sight.last_class)
    seen = set()
    for place in range(start, min(start + _MOST_TEMPLATE_AHEAD, len(text))):
        token_id, ahead = text[place], place - start
        if token_id in seen:
            continue
        seen.add(token_id)
        features = (
            _TEMPLATE_AHEAD + lost * NUM_AHEAD + AHEAD[ahead],
            _TEMPLATE_SAME_CLASS + (NEAR[ahead] * NUM_LOST + lost) * 3 + same,
            row + sight.classes[token_id],
        )
        candidates.append(Candidate(token_id, TEMPLATE, 0, place, NO_STOP, NO_STOP, features))
    return candidates


def guess_frequent(
    sight: Sight, frequent: Iterable[int], counts: Mapping[int, int]
) -> list[Candidate]:
    """Returns the latest tokens of the output and the most frequent ones of the sources.

    Args:
        sight: What is looked at.
        frequent: The most frequent tokens of the sources.
        counts: How often the sources have each token.
    """
    end = len(sight.text)
    start = max(sight.start, end - _MOST_RECENT)
    recent = sight.text[start:]
    latest = dict(zip(recent, range(start, end), strict=True))
    row = class_row(FREQUENT, sight.last_class)
    classes, output = sight.classes, sight.output
    candidates: list[Candidate] = []
    for token_id in dict.fromkeys([*reversed(recent), *frequent]):
        place = latest.get(token_id, NOWHERE)
        count = (counts.get(token_id, 0) + output.count(token_id)).bit_length()
        features = (
            _COUNT + (count if count < NUM_COUNTS else NUM_COUNTS - 1),
            _AGE + (end - place).bit_length() if place != NOWHERE else _AGE,
            row + classes[token_id],
        )
        candidates.append(Candidate(token_id, FREQUENT, 0, place, NO_STOP, NO_STOP, features))
    return candidates


def guess_common(sight: Sight, common: Common) -> list[Candidate]:
    """Returns what commonly follows the last tokens."""
    row, classes = class_row(COMMON, sight.last_class), sight.classes
    candidates: list[Candidate] = []
    for token_id, feature in common.find(sight.text, sight.last_class):
        features = (feature, row + classes[token_id])
        candidates.append(Candidate(token_id, COMMON, 0, NOWHERE, NO_STOP, NO_STOP, features))
    return candidates


def _guess_lines(sight: Sight, taken: set[int]) -> list[Candidate]:
    """Returns the beginnings of the next lines behind the place of the loss."""
    alignment = sight.alignment
    lost = lost_bucket(alignment.num_lost)
    row = class_row(EXPECTED, sight.last_class)
    candidates: list[Candidate] = []
    place = alignment.lost_at
    for number in range(_MOST_LINES):
        place = _find_line(sight, place)
        if place < 0:
            break
        token_id = sight.text[place]
        if place not in taken:
            features = (
                _NEXT_LINE + number * NUM_LOST + lost,
                row + sight.classes[token_id],
            )
            candidates.append(Candidate(token_id, EXPECTED, 0, place, NO_STOP, NO_STOP, features))
    return candidates


def _find_line(sight: Sight, place: int) -> int:
    """Returns the place behind the next line end; -1 if no prediction goes on there."""
    text, classes = sight.text, sight.classes
    for behind in range(place, min(place + _MOST_LINE_TOKENS, sight.num_aligned - 1)):
        if text[behind] < 0:
            return -1
        if classes[text[behind]] == NEWLINE:
            return behind + 1 if text[behind + 1] >= 0 else -1
    return -1
