"""Candidates without agreeing tokens before them: near a lost place, frequent and common ones."""

from collections.abc import Iterable, Iterator, Mapping

from optimist_aligner.candidates import (
    NO_STOP,
    Candidate,
    Sight,
    class_row,
    lost_bucket,
)
from optimist_aligner.common import Common
from optimist_aligner.layout import (
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
from optimist_aligner.template import NOWHERE
from optimist_aligner.token_class import NEWLINE

_MOST_TEMPLATE_AHEAD = 10
_MOST_LINES = 3
_MOST_LINE_TOKENS = 200
_MOST_RECENT = 24
"""Tokens of the output; below 2 ** (NUM_COUNTS - 1), so that each has a bucket of its age."""

_COUNT = START["count"]
_AGE = START["age"]


def guess_beginning(sight: Sight, starts: list[int]) -> list[Candidate]:
    """Returns the first token of each prediction."""
    row = class_row(EXPECTED, sight.last_class)
    features = START["ahead"] + AHEAD[0], START["same_class"]
    return [
        Candidate(
            token_id,
            EXPECTED,
            0,
            place,
            NO_STOP,
            NO_STOP,
            (*features, row + sight.classes[token_id]),
        )
        for place, token_id in ((place, sight.text[place]) for place in starts)
        if token_id >= 0
    ]


def guess_ahead(sight: Sight, taken: set[int]) -> Iterator[Candidate]:
    """Iterates over what stands where the place in the prediction was lost, and behind it.

    Args:
        sight: What is looked at.
        taken: Places that are candidates already.
    """
    alignment, text = sight.alignment, sight.text
    if not alignment.num_lost:
        return
    start, lost = alignment.lost_at, lost_bucket(alignment.num_lost)
    same = sight.compare_classes(start, alignment.num_lost)
    row, aheads = class_row(EXPECTED, sight.last_class), START["ahead"] + lost * NUM_AHEAD
    nears, classes = START["same_class"] + lost * 3 + same, sight.classes
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
            yield Candidate(token_id, EXPECTED, 0, place, NO_STOP, NO_STOP, features)
        seen.add(token_id)
    if sight.last_class == NEWLINE:
        yield from _guess_lines(sight, taken)


def guess_template(sight: Sight) -> Iterator[Candidate]:
    """Iterates over what stands where the place in the earlier output was lost, and behind it."""
    template, text = sight.template, sight.text
    if not template.num_lost or template.lost_at < 0:
        return
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
            START["template_ahead"] + lost * NUM_AHEAD + AHEAD[ahead],
            START["template_same_class"] + (NEAR[ahead] * NUM_LOST + lost) * 3 + same,
            row + sight.classes[token_id],
        )
        yield Candidate(token_id, TEMPLATE, 0, place, NO_STOP, NO_STOP, features)


def guess_frequent(
    sight: Sight, frequent: Iterable[int], counts: Mapping[int, int]
) -> Iterator[Candidate]:
    """Iterates over the latest tokens of the output and the most frequent ones of the sources.

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
    classes, count_own = sight.classes, sight.output.count
    for token_id in dict.fromkeys([*reversed(recent), *frequent]):
        place = latest.get(token_id, NOWHERE)
        count = (counts.get(token_id, 0) + count_own(token_id)).bit_length()
        features = (
            _COUNT + (count if count < NUM_COUNTS else NUM_COUNTS - 1),
            _AGE + (end - place).bit_length() if place != NOWHERE else _AGE,
            row + classes[token_id],
        )
        yield Candidate(token_id, FREQUENT, 0, place, NO_STOP, NO_STOP, features)


def guess_common(sight: Sight, common: Common) -> Iterator[Candidate]:
    """Iterates over what commonly follows the last tokens."""
    row, classes = class_row(COMMON, sight.last_class), sight.classes
    for token_id, feature in common.find(sight.text, sight.last_class):
        features = (feature, row + classes[token_id])
        yield Candidate(token_id, COMMON, 0, NOWHERE, NO_STOP, NO_STOP, features)


def _guess_lines(sight: Sight, taken: set[int]) -> Iterator[Candidate]:
    """Iterates over the beginnings of the next lines behind the place of the loss."""
    alignment = sight.alignment
    lost = lost_bucket(alignment.num_lost)
    row = class_row(EXPECTED, sight.last_class)
    place = alignment.lost_at
    for number in range(_MOST_LINES):
        place = _find_line(sight, place)
        if place < 0:
            return
        token_id = sight.text[place]
        if place not in taken:
            features = (
                START["next_line"] + number * NUM_LOST + lost,
                row + sight.classes[token_id],
            )
            yield Candidate(token_id, EXPECTED, 0, place, NO_STOP, NO_STOP, features)


def _find_line(sight: Sight, place: int) -> int:
    """Returns the place behind the next line end; -1 if no prediction goes on there."""
    text, classes = sight.text, sight.classes
    for behind in range(place, min(place + _MOST_LINE_TOKENS, sight.num_aligned - 1)):
        if text[behind] < 0:
            return -1
        if classes[text[behind]] == NEWLINE:
            return behind + 1 if text[behind + 1] >= 0 else -1
    return -1
