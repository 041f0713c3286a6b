"""The circuit's last three layers: where the answer is, and which token comes next."""

import math

from torch import Tensor

from optimist_training.circuit.basis import (
    COUNT_UNIT,
    MARKER_SCORE,
    MARKER_WEIGHT,
    NEVER,
    PLACE,
    THRESHOLD,
    Basis,
    next_count,
)
from optimist_training.circuit.weights import Head, Neurons

LARGEST_LINE, LARGEST_COLUMN, LARGEST_RUN = 36, 36, 36


def positions_layer(basis: Basis) -> tuple[list[Head], Neurons]:
    """Numbers the position in the code that each token of the answer has."""
    annotated = Head()
    annotated.match(basis.rows("span"), basis.rows("span"), PLACE)
    annotated.match(basis.one, basis.row(after_annotation=PLACE))
    annotated.match(basis.one, basis.marker(score=2 * PLACE - THRESHOLD))
    annotated.copy(basis.row(after_annotation=1), basis.row(annotated=1))
    neurons = Neurons(basis.one)
    line = {"lines": 1.0, "line_shift": 1.0}
    basis.staircase(neurons, "line", line, LARGEST_LINE)
    column = {"words": 1.0, "annotated": -1 / COUNT_UNIT}
    basis.staircase(neurons, "column", column, LARGEST_COLUMN)
    basis.staircase(neurons, "run", {"run_length": 1.0}, LARGEST_RUN)
    renamed = basis.row(rename=1, constant=1, word=1, in_answer=1)
    neurons.all_of(renamed, 3, basis.row(in_new_word=1))
    neurons.all_of(basis.row(annotated=1, word=1), 2, basis.row(in_new_word=1))
    end = basis.row(new_span=1, backtick=1, insert=1, docstring=1)
    neurons.all_of(end, 3, basis.row(ends_new_line=1))
    return [annotated, _run_length(basis)], neurons


def _run_length(basis: Basis) -> Head:
    """Counts the pieces of a word so far, or the tokens since its end."""
    head = Head()
    head.match(basis.rows("span"), basis.rows("span"), 32)
    head.match(basis.rows("cell"), basis.rows("cell"), 32)
    side = basis.row(in_word=2, one=-1)
    head.match(side, side + basis.row(user=1), 18)
    head.match(basis.row(in_user=1), basis.row(run_user=30, user=-30))
    head.match(basis.row(in_answer=1), basis.row(run_answer=30))
    marker = 32 + 32 + 18 + 30 + MARKER_SCORE
    head.match(basis.one, basis.row(user=marker))
    scale = math.sqrt(MARKER_WEIGHT / COUNT_UNIT)
    head.copy(basis.row(one=scale, user=-scale), basis.row(run_length=scale))
    return head


def copy_layer(basis: Basis) -> tuple[list[Head], Neurons]:
    """Copies what follows this position in the code, and decides where other text goes."""
    source = Head()
    source.match(basis.rows("line"), basis.rows("line"), PLACE)
    source.match(basis.rows("column"), basis.rows("column"), 32)
    source.match(basis.rows("code"), basis.rows("code_1"), 32)
    source.match(basis.one, basis.row(in_answer=-NEVER))
    source.match(basis.rows("run"), basis.rows("run"), 32)
    read, write = basis.next()
    source.copy(read, write)
    source.copy(basis.row(word=1), basis.row(copied_word=1))
    column, nothing = basis.rows("column"), 0 * basis.one
    following = position_head(basis, next_count(column.shape[0]) @ column, nothing)
    following.copy(basis.row(is_old=1), basis.row(next_is_old=1))
    current = position_head(basis, column, nothing)
    current.copy(basis.row(is_old=1), basis.row(word_is_old=1))
    beyond = position_head(basis, column, basis.row(one=2 * NEVER, in_new_word=-2 * NEVER))
    beyond.copy(2 * read, write)
    return [source, following, current, beyond], _decisions(basis)


def position_head(basis: Basis, column: Tensor, threshold: Tensor, veto: float = NEVER) -> Head:
    """Looks in the code for the end of an old word at this line and a given column.

    Args:
        basis: The residual stream.
        column: The rows that read the column.
        threshold: The row that reads by how much more a position has to score to be found.
        veto: What is taken from the score of positions in the answer.
    """
    head = Head()
    head.match(basis.rows("line"), basis.rows("line"), PLACE)
    head.match(column, basis.rows("column"), PLACE)
    head.match(basis.one, basis.row(is_old=PLACE, in_answer=-veto))
    score = 3 * PLACE - THRESHOLD
    head.match(score * basis.one + threshold, basis.marker(score=1))
    return head


def _decisions(basis: Basis) -> Neurons:
    """Decides where the new text starts and continues, and where an annotation starts."""
    neurons = Neurons(basis.one)
    start = basis.row(rename=1, constant=1, next_is_old=1, copied_word=1, word=-1)
    neurons.all_of(start, 3, basis.row(starts_new=1))
    indented = basis.row(in_new_line=1, newline_1=1, newline=-1)
    neurons.all_of(indented, 2, basis.row(starts_new=1))
    neurons.gated(basis.row(after_annotation=1, one=-0.5), basis.one, basis.row(starts_new=1))
    going = basis.row(in_new_line=1, newline=-1, newline_1=-1)
    neurons.all_of(going, 1, basis.row(continues_new=1))
    inside = basis.row(in_new_word=1, word_is_old=1)
    neurons.all_of(inside, 2, basis.row(continues_new=1))
    colon = basis.row(annotate=1, in_header=1, word=1, word_is_old=1, annotated=-1, copied_word=-1)
    neurons.all_of(colon, 4, 4 * basis.along("next", basis.token_codes["colon"]))
    return neurons


def new_text_layer(basis: Basis) -> tuple[list[Head], Neurons]:
    """Copies from the new text; the copies outweigh that of the code."""
    read, write = basis.next()
    first = Head()
    first.match(basis.one, basis.row(new_span=60, backtick_1=60))
    first.match(basis.row(one=200, starts_new=-200), basis.marker(score=1))
    first.copy(6 * read, write)
    further = Head()
    further.match(basis.rows("code"), basis.rows("code_1"), 32)
    further.match(basis.rows("column"), basis.rows("column"), 18)
    further.match(basis.rows("run"), basis.rows("run"), 32)
    further.match(basis.one, basis.row(new_span=NEVER))
    further.match(basis.row(one=400, continues_new=-400), basis.marker(score=1))
    # The closing backtick is not part of the text; after a new line comes a newline.
    closing = basis.token_codes["backtick"][:, None] * basis.row(backtick=1)
    newline = basis.token_codes["newline"][:, None] * basis.row(ends_new_line=1)
    further.copy(4 * (read - closing + newline), write)
    return [first, further], Neurons(basis.one)
