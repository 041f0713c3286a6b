"""The circuit's first three layers: what is where, and what the instruction asks for."""

from torch import Tensor

from optimist_training.circuit.basis import (
    COUNT_UNIT,
    LARGEST_COUNT,
    NEVER,
    VETO,
    Basis,
    harmonic_code,
)
from optimist_training.circuit.weights import KIND_FEATURES, Head, Neurons

_PIECE = 98.0
"""Score of a matching piece of a word."""


def text_layer(basis: Basis) -> tuple[list[Head], Neurons]:
    """Separates prompt from answer and brings the tokens before to each token."""
    turn = Head()
    turn.match(basis.one, basis.row(user=20, assistant=40))
    turn.copy(basis.row(user=1), basis.row(in_user=1))
    turn.copy(basis.row(assistant=1), basis.row(in_answer=1))
    heads = [turn]
    copied = {
        1: (
            ("code", "piece"),
            ("word", "newline", "backtick", "digit", "digit_value", "user"),
        ),
        2: (("piece",), ("newline", "word", "digit_value", "colon_end")),
        3: (("piece",), ("word",)),
        4: (("piece",), ("word",)),
    }
    for offset, (blocks, features) in copied.items():
        head = Head()
        head.at_offset(offset, basis.one)
        for name in (*blocks, *features):
            head.copy(basis.rows(name), basis.rows(f"{name}_{offset}"))
        heads.append(head)
    neurons = Neurons(basis.one)
    for name, count, condition in (
        ("starts_word", 1, basis.row(word=1, word_1=-1)),
        ("ends_word", 1, basis.row(word_1=1, word=-1)),
        ("ends_number", 1, basis.row(digit_1=1, digit=-1)),
        ("line_answer", 2, basis.row(newline=1, in_answer=1)),
        ("line_user", 2, basis.row(newline_1=1, in_user=1)),
        ("quote_user", 2, basis.row(backtick_1=1, in_user=1)),
        ("in_word", 2, basis.row(word_1=1, in_user=1)),
        ("in_word", 2, basis.row(word=1, in_answer=1)),
        # A quoted line has neither newline nor indentation, so they do not count; nor do the
        # backticks of the instruction.
        ("run_user", 1, basis.row(in_user=1, newline_1=-1, newline_2=-1, backtick_1=-1)),
        ("run_answer", 1, basis.row(in_answer=1, newline=-1, newline_1=-1)),
        ("starts_body", 3, basis.row(newline_1=1, colon_end_2=1, in_user=1)),
    ):
        neurons.all_of(condition, count, basis.row(**{name: 1}))
    _word_pieces(basis, neurons, range(2, 5))
    for row in basis.rows("code_1", "piece_1"):
        # The user's marker must match nothing, whatever is before it.
        neurons.gated(basis.row(user=1, one=-0.5), -row, row)
    return heads, neurons


def _word_pieces(basis: Basis, neurons: Neurons, numbers: range) -> None:
    """Fills the slots with pieces of the word that just ended, padded beyond its start."""
    for number in numbers:
        inside = basis.row(**{f"word_{count}": 1 for count in range(1, number + 1)})
        pieces = basis.rows(f"piece_{number}") - basis.pad[:, None] * basis.one
        slots = basis.rows(f"slot_{number}")
        for piece, slot in zip(pieces, slots, strict=True):
            neurons.gated(inside - (number - 0.5) * basis.one, piece, slot)
        basis.everywhere(neurons, basis.along(f"slot_{number}", basis.pad))


def lines_layer(basis: Basis) -> tuple[list[Head], Neurons]:
    """Counts lines and backticks, and reads the kind of edit."""
    kind = Head()
    kind.match(basis.one, basis.row(user_1=40, user=-40))
    for name in KIND_FEATURES:
        kind.copy(basis.row(**{f"ask_{name}": 1}), basis.row(**{name: 1}))
    previous = Head()
    previous.at_offset(1, basis.one)
    previous.copy(basis.row(starts_word=1), basis.row(starts_word_1=1))
    fifth = Head()
    fifth.at_offset(5, basis.one)
    for name in ("piece", "word"):
        fifth.copy(basis.rows(name), basis.rows(f"{name}_5"))
    heads = [
        basis.counter("line_user", "line_answer", "lines"),
        basis.counter("quote_user", None, "quotes"),
        kind,
        previous,
        fifth,
    ]
    neurons = Neurons(basis.one)
    neurons.all_of(basis.row(in_user=1, starts_word_1=1), 2, basis.row(word_user=1))
    neurons.all_of(basis.row(in_answer=1, starts_word=1), 2, basis.row(word_answer=1))
    quote = basis.row(in_user=1, backtick_1=1, newline_2=-1) - 2 * basis.one
    neurons.step(basis.above(1, lines=1) + VETO * quote, basis.row(run_user=1))
    _word_pieces(basis, neurons, range(5, 6))
    _spans(basis, neurons)
    _instruction(basis, neurons)
    return heads, neurons


def _spans(basis: Basis, neurons: Neurons) -> None:
    """Gives each line, and each quoted span of the instruction, a code of its own."""
    codes = harmonic_code(basis.rows("span").shape[0])
    first = LARGEST_COUNT + 5
    basis.everywhere(neurons, basis.along("span", codes[first]))
    for count in range(1, LARGEST_COUNT):
        before = codes[count - 1] if count > 1 else codes[first]
        step = basis.along("span", codes[count] - before)
        neurons.step(basis.above(count, lines=1), step)
    for quote in range(1, 5):
        step = basis.along("span", codes[first + quote] - codes[first + quote - 1])
        neurons.step(_in_instruction(basis, basis.above(quote, quotes=1)), step)


def _in_instruction(basis: Basis, condition: Tensor) -> Tensor:
    """Adds to a condition that no line has ended yet."""
    return condition - basis.row(lines=8 * COUNT_UNIT)


def _instruction(basis: Basis, neurons: Neurons) -> None:
    """Marks the spans of the instruction, by the kind of edit and the number of backticks."""
    words, lines = ("rename", "constant", "annotate"), ("insert", "docstring")
    for name, kinds, quotes, features in (
        ("old_end", words, 1, {"backtick": 1.0}),
        ("new_span", words, 3, {}),
        ("new_span", lines, 1, {}),
        ("line_number", ("delete",), 0, {"ends_number": 1.0}),
        ("line_number", ("insert",), 2, {"ends_number": 1.0}),
    ):
        wanted = {"in_user": 1.0, **dict.fromkeys(kinds, 1.0), **features}
        missing = VETO * (basis.row(**wanted) - (2 + len(features)) * basis.one)
        for count, sign in ((quotes, 1), (quotes + 1, -1)):
            condition = basis.above(count, quotes=1) + missing
            neurons.step(_in_instruction(basis, condition), basis.row(**{name: sign}))


def words_layer(basis: Basis) -> tuple[list[Head], Neurons]:
    """Counts words within their line, and finds old words and the line to change."""
    words = basis.counter("word_user", "word_answer", "words")
    words.match(basis.rows("span"), basis.rows("span"), 32)
    words.match(basis.one, basis.row(user=32))
    same = Head()
    slots = ("piece_1", "slot_2", "slot_3", "slot_4", "slot_5")
    for name in slots:
        same.match(basis.rows(name), basis.rows(name), _PIECE)
    same.match(basis.one, basis.row(old_end=NEVER))
    # Halfway between five equal pieces and four with the two most alike.
    threshold = (len(slots) - 0.11) * _PIECE + NEVER
    marker = basis.marker(score=1)
    same.match(basis.row(one=threshold + NEVER, ends_word=-NEVER), marker)
    same.copy(basis.row(old_end=1), basis.row(is_old=1))
    number = Head()
    number.match(basis.one, basis.row(line_number=40, user=20))
    tens, ones = 100 / COUNT_UNIT, 10 / COUNT_UNIT
    value = basis.row(digit_value_2=tens, digit_value_1=ones, one=1 / COUNT_UNIT)
    number.copy(value, basis.row(target_line=1))
    body = Head()
    # The first of several: each line further up scores ten more.
    body.match(basis.one, basis.row(starts_body=500, lines=-10 * COUNT_UNIT))
    body.copy(basis.row(lines=1), basis.row(body_line=1))
    neurons = _corrections(basis)
    # Words of one line apart, for counting tokens within them.
    basis.staircase(neurons, "cell", {"words": 1.0}, LARGEST_COUNT)
    return [words, same, number, body], neurons


def _corrections(basis: Basis) -> Neurons:
    """Corrects the answer's line number after a deleted or inserted line."""
    neurons = Neurons(basis.one)
    for kind, target, shift in (
        ("delete", "target_line", 1),
        ("insert", "target_line", -1),
        ("docstring", "body_line", -1),
    ):
        missing = VETO * (basis.row(**{kind: 1}, in_answer=1) - 2 * basis.one)
        reached = basis.row(**{"lines": COUNT_UNIT, target: -COUNT_UNIT}) + missing
        at, beyond = reached + 0.5 * basis.one, reached - 0.5 * basis.one
        moved = basis.row(line_shift=shift / COUNT_UNIT)
        neurons.step(at if kind == "delete" else beyond, moved)
        if kind != "delete":
            neurons.step(at, basis.row(in_new_line=1))
            neurons.step(beyond, basis.row(in_new_line=-1))
    header = basis.row(body_line=COUNT_UNIT, lines=-COUNT_UNIT) - 0.5 * basis.one
    answer = VETO * (basis.row(in_answer=1) - basis.one)
    neurons.step(header + answer, basis.row(in_header=1))
    wanted = basis.row(is_old=1, colon_space=1, annotate=1, in_answer=1)
    missing = VETO * (wanted - 4 * basis.one)
    neurons.step(header + missing, basis.row(after_annotation=1))
    return neurons
