"""Candidates without agreeing tokens before them: near a lost offset, frequent and common ones."""

from collections.abc import Collection, Iterable
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View, lost_bucket
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

_PREFIXES: Final = {EXPECTED: "", TEMPLATE: "template_"}
"""Of the blocks of guesses near a lost offset."""


def guess_beginning(view: View, starts: Iterable[int]) -> list[Candidate]:
    """Returns the first token of each prediction."""
    candidates: list[Candidate] = []
    for offset in starts:
        token_id = view.text[offset]
        if token_id >= 0:
            features = [START["ahead"] + AHEAD[0], START["same_class"]]
            features.append(view.class_feature(EXPECTED, token_id))
            candidates.append(Candidate(token_id, EXPECTED, 0, offset, features))
    return candidates


def guess_ahead(view: View, taken: Collection[int]) -> list[Candidate]:
    """Returns what stands where the offset in the prediction was lost, and after it.

    Args:
        view: What is looked at.
        taken: Offsets that are candidates already.
    """
    start, num_lost = view.alignment.lost_at, view.alignment.num_lost
    if not num_lost:
        return []
    end = min(start + MOST_AHEAD, view.num_aligned)
    candidates = _guess_between(view, EXPECTED, start, end, num_lost, taken)
    if view.last_class == NEWLINE:
        candidates += _guess_lines(view, taken)
    return candidates


def guess_template(view: View) -> list[Candidate]:
    """Returns what stands where the offset in the earlier output was lost, and after it."""
    start, num_lost = view.template.lost_at, view.template.num_lost
    if not num_lost or start < 0:
        return []
    end = min(start + _MOST_TEMPLATE_AHEAD, len(view.text))
    return _guess_between(view, TEMPLATE, start, end, num_lost, ())


def guess_frequent(view: View, frequent: Iterable[int]) -> list[Candidate]:
    """Returns the latest tokens of the output and the most frequent ones of the sources."""
    end = len(view.text)
    start = max(view.start, end - _MOST_RECENT)
    recent = view.text[start:]
    latest = dict(zip(recent, range(start, end), strict=True))
    candidates: list[Candidate] = []
    for token_id in dict.fromkeys([*reversed(recent), *frequent]):
        offset = latest.get(token_id, NOWHERE)
        age = 0 if offset == NOWHERE else (end - offset).bit_length()
        count = sum(len(index.find((token_id,))) for index in (view.contexts, view.output))
        features = [
            START["count"] + min(count.bit_length(), NUM_COUNTS - 1),
            START["age"] + age,
            view.class_feature(FREQUENT, token_id),
        ]
        candidates.append(Candidate(token_id, FREQUENT, 0, offset, features))
    return candidates


def guess_common(view: View, common: Common) -> list[Candidate]:
    """Returns what commonly follows the last tokens."""
    return [
        Candidate(token_id, COMMON, 0, NOWHERE, [feature, view.class_feature(COMMON, token_id)])
        for token_id, feature in common.find(view.text[-2:], view.last_class)
    ]


def _guess_between(
    view: View, kind: int, start: int, end: int, num_lost: int, taken: Collection[int]
) -> list[Candidate]:
    """Returns the tokens from a lost offset on, each once, as far as their text goes.

    Args:
        view: What is looked at.
        kind: EXPECTED or TEMPLATE.
        start: The lost offset.
        end: Where to end.
        num_lost: Tokens since it was lost.
        taken: Offsets that are candidates already.
    """
    prefix, lost = _PREFIXES[kind], lost_bucket(num_lost)
    same = view.compare_classes(start, num_lost)
    candidates: list[Candidate] = []
    for offset in range(start, end):
        token_id, ahead = view.text[offset], offset - start
        if token_id < 0:
            break
        if token_id not in view.text[start:offset] and offset not in taken:
            features = [
                START[prefix + "ahead"] + lost * NUM_AHEAD + AHEAD[ahead],
                START[prefix + "same_class"] + (NEAR[ahead] * NUM_LOST + lost) * 3 + same,
                view.class_feature(kind, token_id),
            ]
            candidates.append(Candidate(token_id, kind, 0, offset, features))
    return candidates


def _guess_lines(view: View, taken: Collection[int]) -> list[Candidate]:
    """Returns the beginnings of the next lines after the offset of the loss."""
    first = START["next_line"] + lost_bucket(view.alignment.num_lost)
    candidates: list[Candidate] = []
    offset = view.alignment.lost_at
    for number in range(_MOST_LINES):
        offset = _find_line(view, offset)
        if offset < 0:
            break
        if offset not in taken:
            token_id = view.text[offset]
            features = [first + number * NUM_LOST, view.class_feature(EXPECTED, token_id)]
            candidates.append(Candidate(token_id, EXPECTED, 0, offset, features))
    return candidates


def _find_line(view: View, offset: int) -> int:
    """Returns the offset after the next line end; -1 if no prediction goes on there."""
    text, classes = view.text, view.classes
    for after in range(offset, min(offset + _MOST_LINE_TOKENS, view.num_aligned - 1)):
        if text[after] < 0:
            return -1
        if classes.find(text[after]) == NEWLINE:
            return after + 1 if text[after + 1] >= 0 else -1
    return -1
