"""The named dimensions of the residual stream that the circuit reads and writes."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

HIDDEN_SIZE = 320

KIND_FEATURES = ("rename", "constant", "delete", "insert", "docstring", "annotate", "repeat")

# What the embedding says of a token.
TOKEN_FEATURES = (
    "word", "newline", "backtick", "digit", "digit_value", "colon_end", "colon_space",
    "user", "assistant",
)  # fmt: skip

# The same of the token one and two places before, and so on.
PREVIOUS_FEATURES = (
    "word_1", "newline_1", "backtick_1", "digit_1", "digit_value_1", "user_1",
    "word_2", "newline_2", "digit_value_2", "colon_end_2", "word_3", "word_4", "word_5",
)  # fmt: skip

COMPUTED_FEATURES = (
    "in_user", "in_answer",
    # The token starts a word, or the one before did; the token follows a word, or a number.
    "starts_word", "starts_word_1", "ends_word", "ends_number",
    # What the counting heads count, apart for prompt and answer, and what they found.
    "line_user", "line_answer", "quote_user", "word_user", "word_answer",
    "lines", "quotes", "words", "run_user", "run_answer", "in_word", "run_length",
    "starts_body", "old_end", "new_span", "line_number",
    "is_old", "target_line", "body_line",
    "line_shift", "in_new_line", "in_header", "annotated", "after_annotation",
    "in_new_word", "continues_new", "ends_new_line",
    "next_is_old", "word_is_old", "copied_word", "starts_new",
)  # fmt: skip

BLOCKS = {
    # Codes of the token: three independent ones, so that each can be matched alone.
    "code": 16, "code_more": 16, "piece": 9,
    "code_1": 16,
    "piece_1": 9, "piece_2": 9, "piece_3": 9, "piece_4": 9, "piece_5": 9,
    # Pieces 2 to 5 of the word that just ended, counted from its end; padding beyond its start.
    "slot_2": 9, "slot_3": 9, "slot_4": 9, "slot_5": 9,
    "span": 12, "cell": 12, "line": 10, "column": 12, "run": 8,
    "next": 41,
}  # fmt: skip


@dataclass(frozen=True)
class Subspaces:
    """Where each feature and block lies."""

    slices: dict[str, slice] = field(default_factory=dict)

    @staticmethod
    def build() -> "Subspaces":
        """Lays all features and blocks side by side."""
        widths = {"one": 1}
        for name in (*KIND_FEATURES, *(f"ask_{kind}" for kind in KIND_FEATURES)):
            widths[name] = 1
        widths |= dict.fromkeys((*TOKEN_FEATURES, *PREVIOUS_FEATURES, *COMPUTED_FEATURES), 1)
        widths |= BLOCKS
        slices, start = {}, 0
        for name, width in widths.items():
            slices[name] = slice(start, start + width)
            start += width
        if start > HIDDEN_SIZE:
            raise ValueError(f"{start} dimensions do not fit into {HIDDEN_SIZE}")
        return Subspaces(slices)

    def rows(self, name: str) -> Tensor:
        """Returns the rows that read a block, [width, hidden_size]."""
        return torch.eye(HIDDEN_SIZE, dtype=torch.float64)[self.slices[name]]

    def row(self, **weights: float) -> Tensor:
        """Returns one row that reads a weighted sum of features, [hidden_size]."""
        total = torch.zeros(HIDDEN_SIZE, dtype=torch.float64)
        for name, weight in weights.items():
            total += weight * self.rows(name)[0]
        return total
