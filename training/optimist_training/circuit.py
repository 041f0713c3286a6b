"""Writes a pointer machine into the initial weights of a plain Llama model.

From random weights, exact copying of hundreds of tokens takes far more training than two CPU cores
can give. So the initial weights already know where each token of the answer comes from, and
training refines them. Layer by layer:

0. Heads: prompt or answer; the four tokens before. Neurons: word starts and ends, word pieces.
1. Heads: count lines and backticks; the kind of edit, from the instruction's verb. Neurons: one
   code for each line or quoted span; which quoted span is old, which is new.
2. Heads: count words within the line; does the word that just ended equal the old one; which line
   does the instruction name; where does the body start. Neurons: an answer that lost or gained a
   line corrects its line number from there on.
3. Head: is this answer's line already annotated. Neurons: codes of line and word number.
4. Heads: copy what follows the token with the same line, word and text in the code; look for old
   words there. Neurons: decide to start or to continue the new text.
5. Heads: copy from the new text; they outweigh the copy of the code.

The prompt's tokens carry the line and word number of the token before them and the answer's tokens
their own, so that a match points at the token to copy.
"""

import math

import torch
from torch import Tensor

from optimist_training.codes import LARGEST_COUNT, harmonic_code, next_count
from optimist_training.subspaces import HIDDEN_SIZE, KIND_FEATURES, Subspaces
from optimist_training.weights import Head, Neurons, layer_weights

NUM_LAYERS = 6
LARGEST_LINE, LARGEST_COLUMN, LARGEST_RUN = 36, 36, 36

# Counting heads attend with weight 1 to each counted token and with this weight to the marker of
# the user's turn, so that the attention to counted tokens is nearly proportional to their number.
_MARKER_SCORE = 9.0
_MARKER_WEIGHT = math.exp(_MARKER_SCORE)
_COUNT_SCORE = 16.0
COUNT_UNIT = 32.0
"""Counts are stored in units of 32, to stay as small as the other features."""

_NEVER = 100.0
"""A score that no other outweighs."""
_VETO = 64.0
"""What a missing condition takes from a neuron's threshold."""
_PLACE, _THRESHOLD = 72.0, 20.0


class Circuit:
    """Builds the layers' weights."""

    def __init__(self, spaces: Subspaces, pad: Tensor, token_codes: dict[str, Tensor]) -> None:
        """Prepares the circuit.

        Args:
            spaces: The residual stream.
            pad: The piece that stands beyond the start of a word, [piece_width].
            token_codes: The next-token codes of ":", backtick and newline, each [next_width].
        """
        self._spaces = spaces
        self._pad = pad
        self._token_codes = token_codes
        self._one = spaces.row(one=1)

    def layers(self, generator: torch.Generator) -> list[dict[str, Tensor]]:
        """Returns each layer's matrices; the generator fills what the circuit does not use."""
        parts = (self._text, self._lines, self._words, self._places, self._copy, self._new_text)
        return [layer_weights(*part(), generator) for part in parts]

    def _row(self, **weights: float) -> Tensor:
        return self._spaces.row(**weights)

    def _rows(self, *names: str) -> Tensor:
        return torch.cat([self._spaces.rows(name) for name in names])

    def _along(self, name: str, vector: Tensor) -> Tensor:
        """Returns a vector of a block as a vector of the residual stream, [hidden_size]."""
        return vector @ self._spaces.rows(name)

    def _text(self) -> tuple[list[Head], Neurons]:
        turn = Head()
        turn.match(self._one, self._row(user=20, assistant=40))
        turn.copy(self._row(user=1), self._row(in_user=1))
        turn.copy(self._row(assistant=1), self._row(in_answer=1))
        heads = [turn]
        copied = {
            1: (
                ("code",),
                ("word", "newline", "backtick", "digit", "digit_value", "user"),
            ),
            2: (("piece",), ("newline", "word", "digit_value", "colon_end")),
            3: (("piece",), ("word",)),
            4: (("piece",), ("word",)),
        }
        for offset, (blocks, features) in copied.items():
            head = Head()
            head.at_offset(offset, self._one)
            for name in (*blocks, *features):
                head.copy(self._rows(name), self._rows(f"{name}_{offset}"))
            heads.append(head)
        neurons = Neurons(self._one)
        for name, count, condition in (
            ("starts_word", 1, self._row(word=1, word_1=-1)),
            ("ends_word", 1, self._row(word_1=1, word=-1)),
            ("ends_number", 1, self._row(digit_1=1, digit=-1)),
            ("line_answer", 2, self._row(newline=1, in_answer=1)),
            ("line_user", 2, self._row(newline_1=1, in_user=1)),
            ("quote_user", 2, self._row(backtick_1=1, in_user=1)),
            ("in_word", 2, self._row(word_1=1, in_user=1)),
            ("in_word", 2, self._row(word=1, in_answer=1)),
            # A quoted line has neither newline nor indentation, so they do not count; nor do the
            # backticks of the instruction.
            ("run_user", 1, self._row(in_user=1, newline_1=-1, newline_2=-1, backtick_1=-1)),
            ("run_answer", 1, self._row(in_answer=1, newline=-1, newline_1=-1)),
            ("starts_body", 3, self._row(newline_1=1, colon_end_2=1, in_user=1)),
        ):
            neurons.all_of(condition, count, self._row(**{name: 1}))
        self._word_pieces(neurons)
        for row in self._rows("code_1"):
            # The user's marker must match nothing, whatever stands before it.
            neurons.gated(self._row(user=1, one=-0.5), -row, row)
        return heads, neurons

    def _word_pieces(self, neurons: Neurons) -> None:
        """Fills the slots with pieces of the word that just ended, padded beyond its start."""
        inside = self._row(word_1=1)
        for number in (2, 3, 4):
            inside = inside + self._row(**{f"word_{number}": 1})
            pieces = self._rows(f"piece_{number}") - self._pad[:, None] * self._one
            slots = self._rows(f"slot_{number}")
            for piece, slot in zip(pieces, slots, strict=True):
                neurons.gated(inside - (number - 0.5) * self._one, piece, slot)
            self._everywhere(neurons, self._along(f"slot_{number}", self._pad))

    def _everywhere(self, neurons: Neurons, down: Tensor) -> None:
        """Adds `down` to all tokens but the user's marker.

        Many heads attend to the marker when they find nothing, so it must match nothing itself.
        """
        neurons.gated(self._row(one=0.5, user=-1), self._one, down)

    def _counter(self, user: str, answer: str | None, result: str) -> Head:
        """Counts the tokens up to here that have a feature, in the prompt or in the answer."""
        head = Head()
        if answer is None:
            head.match(self._one, self._row(**{user: _COUNT_SCORE}))
        else:
            head.match(self._row(in_user=1), self._row(**{user: _COUNT_SCORE}))
            head.match(self._row(in_answer=1), self._row(**{answer: _COUNT_SCORE}))
        head.match(self._one, self._row(user=_COUNT_SCORE + _MARKER_SCORE))
        # The square root on either side keeps both matrices at a moderate size.
        scale = math.sqrt(_MARKER_WEIGHT / COUNT_UNIT)
        counted = {name: scale for name in (user, answer) if name is not None}
        head.copy(self._row(**counted), self._row(**{result: scale}))
        return head

    def _above(self, count: float, **features: float) -> Tensor:
        """Returns a row that reads above zero where a sum of counting features is >= count."""
        middle = count - 0.5
        stored = middle * _MARKER_WEIGHT / (_MARKER_WEIGHT + middle)
        stored = round(stored * COUNT_UNIT) / COUNT_UNIT  # exact in 16 bits
        scaled = {name: weight * COUNT_UNIT for name, weight in features.items()}
        return self._row(**scaled) - stored * self._one

    def _lines(self) -> tuple[list[Head], Neurons]:
        kind = Head()
        kind.match(self._one, self._row(user_1=40, user=-40))
        for name in KIND_FEATURES:
            kind.copy(self._row(**{f"ask_{name}": 1}), self._row(**{name: 1}))
        previous = Head()
        previous.at_offset(1, self._one)
        previous.copy(self._row(starts_word=1), self._row(starts_word_1=1))
        heads = [
            self._counter("line_user", "line_answer", "lines"),
            self._counter("quote_user", None, "quotes"),
            kind,
            previous,
        ]
        neurons = Neurons(self._one)
        neurons.all_of(self._row(in_user=1, starts_word_1=1), 2, self._row(word_user=1))
        neurons.all_of(self._row(in_answer=1, starts_word=1), 2, self._row(word_answer=1))
        quote = self._row(in_user=1, backtick_1=1, newline_2=-1) - 2 * self._one
        neurons.step(self._above(1, lines=1) + _VETO * quote, self._row(run_user=1))
        self._spans(neurons)
        self._instruction(neurons)
        return heads, neurons

    def _spans(self, neurons: Neurons) -> None:
        """Gives each line, and each quoted span of the instruction, a code of its own."""
        codes = harmonic_code(self._spaces.rows("span").shape[0])
        first = LARGEST_COUNT + 5
        self._everywhere(neurons, self._along("span", codes[first]))
        for count in range(1, LARGEST_COUNT):
            before = codes[count - 1] if count > 1 else codes[first]
            step = self._along("span", codes[count] - before)
            neurons.step(self._above(count, lines=1), step)
        for quote in range(1, 5):
            step = self._along("span", codes[first + quote] - codes[first + quote - 1])
            neurons.step(self._in_instruction(self._above(quote, quotes=1)), step)

    def _in_instruction(self, condition: Tensor) -> Tensor:
        """Adds to a condition that no line has ended yet."""
        return condition - self._row(lines=8 * COUNT_UNIT)

    def _instruction(self, neurons: Neurons) -> None:
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
            missing = _VETO * (self._row(**wanted) - (2 + len(features)) * self._one)
            for count, sign in ((quotes, 1), (quotes + 1, -1)):
                condition = self._above(count, quotes=1) + missing
                neurons.step(self._in_instruction(condition), self._row(**{name: sign}))

    def _found(self, *, score: float) -> Tensor:
        """Returns the key of the user's marker, which is attended to when nothing scores more."""
        return self._row(user=score)

    def _words(self) -> tuple[list[Head], Neurons]:
        words = self._counter("word_user", "word_answer", "words")
        words.match(self._rows("span"), self._rows("span"), 32)
        words.match(self._one, self._row(user=32))
        same = Head()
        for one, other in (
            ("code_1", "code_1"),
            ("slot_2", "slot_2"),
            ("slot_3", "slot_3"),
            ("slot_4", "slot_4"),
        ):
            same.match(self._rows(one), self._rows(other), _PLACE)
        same.match(self._one, self._row(old_end=_NEVER))
        marker = self._found(score=1)
        threshold = 4 * _PLACE + _NEVER - 0.17 * _PLACE
        same.match(self._row(one=threshold + _NEVER, ends_word=-_NEVER), marker)
        same.copy(self._row(old_end=1), self._row(is_old=1))
        number = Head()
        number.match(self._one, self._row(line_number=40, user=20))
        tens, ones = 100 / COUNT_UNIT, 10 / COUNT_UNIT
        value = self._row(digit_value_2=tens, digit_value_1=ones, one=1 / COUNT_UNIT)
        number.copy(value, self._row(target_line=1))
        body = Head()
        # The first of several: each line further up scores ten more.
        body.match(self._one, self._row(starts_body=500, lines=-10 * COUNT_UNIT))
        body.copy(self._row(lines=1), self._row(body_line=1))
        neurons = self._corrections()
        # Words of one line apart, for counting tokens within them.
        self._staircase(neurons, "cell", {"words": 1.0}, LARGEST_COUNT)
        return [words, same, number, body], neurons

    def _staircase(
        self, neurons: Neurons, block: str, features: dict[str, float], largest: int
    ) -> None:
        """Writes the code of a count, a sum of counting features, into a block."""
        codes = harmonic_code(self._spaces.rows(block).shape[0])
        self._everywhere(neurons, self._along(block, codes[0]))
        for count in range(1, largest):
            step = self._along(block, codes[count] - codes[count - 1])
            neurons.step(self._above(count, **features), step)

    def _corrections(self) -> Neurons:
        """Corrects the answer's line number behind a deleted or inserted line."""
        neurons = Neurons(self._one)
        for kind, target, shift in (
            ("delete", "target_line", 1),
            ("insert", "target_line", -1),
            ("docstring", "body_line", -1),
        ):
            missing = _VETO * (self._row(**{kind: 1}, in_answer=1) - 2 * self._one)
            reached = self._row(**{"lines": COUNT_UNIT, target: -COUNT_UNIT}) + missing
            at, behind = reached + 0.5 * self._one, reached - 0.5 * self._one
            moved = self._row(line_shift=shift / COUNT_UNIT)
            neurons.step(at if kind == "delete" else behind, moved)
            if kind != "delete":
                neurons.step(at, self._row(in_new_line=1))
                neurons.step(behind, self._row(in_new_line=-1))
        header = self._row(body_line=COUNT_UNIT, lines=-COUNT_UNIT) - 0.5 * self._one
        answer = _VETO * (self._row(in_answer=1) - self._one)
        neurons.step(header + answer, self._row(in_header=1))
        wanted = self._row(is_old=1, colon_space=1, annotate=1, in_answer=1)
        missing = _VETO * (wanted - 4 * self._one)
        neurons.step(header + missing, self._row(after_annotation=1))
        return neurons

    def _places(self) -> tuple[list[Head], Neurons]:
        annotated = Head()
        annotated.match(self._rows("span"), self._rows("span"), _PLACE)
        annotated.match(self._one, self._row(after_annotation=_PLACE))
        annotated.match(self._one, self._found(score=2 * _PLACE - _THRESHOLD))
        annotated.copy(self._row(after_annotation=1), self._row(annotated=1))
        neurons = Neurons(self._one)
        line = {"lines": 1.0, "line_shift": 1.0}
        self._staircase(neurons, "line", line, LARGEST_LINE)
        column = {"words": 1.0, "annotated": -1 / COUNT_UNIT}
        self._staircase(neurons, "column", column, LARGEST_COLUMN)
        self._staircase(neurons, "run", {"run_length": 1.0}, LARGEST_RUN)
        renamed = self._row(rename=1, constant=1, word=1, in_answer=1)
        neurons.all_of(renamed, 3, self._row(in_new_word=1))
        neurons.all_of(self._row(annotated=1, word=1), 2, self._row(in_new_word=1))
        end = self._row(new_span=1, backtick=1, insert=1, docstring=1)
        neurons.all_of(end, 3, self._row(ends_new_line=1))
        return [annotated, self._run_length()], neurons

    def _run_length(self) -> Head:
        """Counts the pieces of a word so far, or the tokens since its end."""
        head = Head()
        head.match(self._rows("span"), self._rows("span"), 32)
        head.match(self._rows("cell"), self._rows("cell"), 32)
        side = self._row(in_word=2, one=-1)
        head.match(side, side + self._row(user=1), 18)
        head.match(self._row(in_user=1), self._row(run_user=30, user=-30))
        head.match(self._row(in_answer=1), self._row(run_answer=30))
        marker = 32 + 32 + 18 + 30 + _MARKER_SCORE
        head.match(self._one, self._row(user=marker))
        scale = math.sqrt(_MARKER_WEIGHT / COUNT_UNIT)
        head.copy(self._row(one=scale, user=-scale), self._row(run_length=scale))
        return head

    def _place_head(self, column: Tensor, threshold: Tensor) -> Head:
        """Looks in the code for the end of an old word at this line and a given column."""
        head = Head()
        head.match(self._rows("line"), self._rows("line"), _PLACE)
        head.match(column, self._rows("column"), _PLACE)
        head.match(self._one, self._row(is_old=_PLACE, in_answer=-_NEVER))
        score = 3 * _PLACE - _THRESHOLD
        head.match(score * self._one + threshold, self._found(score=1))
        return head

    def _next(self) -> tuple[Tensor, Tensor]:
        """Returns the rows that read a token's code and those of the next token's, [width, :]."""
        return self._rows("code", "code_more", "piece") / math.sqrt(3), self._rows("next")

    def _copy(self) -> tuple[list[Head], Neurons]:
        source = Head()
        source.match(self._rows("line"), self._rows("line"), _PLACE)
        source.match(self._rows("column"), self._rows("column"), 32)
        source.match(self._rows("code"), self._rows("code_1"), 32)
        source.match(self._one, self._row(in_answer=-_NEVER))
        source.match(self._rows("run"), self._rows("run"), 32)
        read, write = self._next()
        source.copy(read, write)
        source.copy(self._row(word=1), self._row(copied_word=1))
        column, nothing = self._rows("column"), torch.zeros(HIDDEN_SIZE, dtype=torch.float64)
        following = self._place_head(next_count(column.shape[0]) @ column, nothing)
        following.copy(self._row(is_old=1), self._row(next_is_old=1))
        current = self._place_head(column, nothing)
        current.copy(self._row(is_old=1), self._row(word_is_old=1))
        behind = self._place_head(column, self._row(one=2 * _NEVER, in_new_word=-2 * _NEVER))
        behind.copy(2 * read, write)
        return [source, following, current, behind], self._decisions()

    def _decisions(self) -> Neurons:
        """Decides where the new text starts and continues, and where an annotation starts."""
        neurons = Neurons(self._one)
        start = self._row(rename=1, constant=1, next_is_old=1, copied_word=1, word=-1)
        neurons.all_of(start, 3, self._row(starts_new=1))
        indented = self._row(in_new_line=1, newline_1=1, newline=-1)
        neurons.all_of(indented, 2, self._row(starts_new=1))
        neurons.gated(self._row(after_annotation=1, one=-0.5), self._one, self._row(starts_new=1))
        going = self._row(in_new_line=1, newline=-1, newline_1=-1)
        neurons.all_of(going, 1, self._row(continues_new=1))
        inside = self._row(in_new_word=1, word_is_old=1)
        neurons.all_of(inside, 2, self._row(continues_new=1))
        colon = self._row(
            annotate=1, in_header=1, word=1, word_is_old=1, annotated=-1, copied_word=-1
        )
        neurons.all_of(colon, 4, 4 * self._along("next", self._token_codes["colon"]))
        return neurons

    def _new_text(self) -> tuple[list[Head], Neurons]:
        read, write = self._next()
        first = Head()
        first.match(self._one, self._row(new_span=60, backtick_1=60))
        first.match(self._row(one=200, starts_new=-200), self._found(score=1))
        first.copy(6 * read, write)
        further = Head()
        further.match(self._rows("code"), self._rows("code_1"), 32)
        further.match(self._rows("column"), self._rows("column"), 18)
        further.match(self._rows("run"), self._rows("run"), 32)
        further.match(self._one, self._row(new_span=_NEVER))
        further.match(self._row(one=400, continues_new=-400), self._found(score=1))
        # The closing backtick is not part of the text; behind a new line comes a newline.
        closing = self._token_codes["backtick"][:, None] * self._row(backtick=1)
        newline = self._token_codes["newline"][:, None] * self._row(ends_new_line=1)
        further.copy(4 * (read - closing + newline), write)
        return [first, further], Neurons(self._one)
