"""A prediction, split into lines and ready to be searched for a line."""

from array import array
from collections.abc import Sequence, Set

from optimist_proposer.core.lines import line_starts

# Masks of lines that occur oftener than this are kept: they take num_lines / 8 bytes each, and so
# few lines can occur so often that their sum stays small.
_FEW_OCCURRENCES = 64


class Prediction:
    """The predicted tokens of one request; does not change, but for a cache inside.

    Attributes:
        token_ids: The tokens, [num_tokens].
        line_starts: Where each line starts, and the end of the last, [num_lines + 1].
        num_complete_lines: Lines that end with a newline: all, or all but the last.
        longest_line: Number of tokens of the longest line.
    """

    __slots__ = (
        "_lines",
        "_masks",
        "_positions",
        "line_starts",
        "longest_line",
        "num_complete_lines",
        "token_ids",
    )

    def __init__(self, token_ids: "array[int]", newline_token_ids: Set[int]) -> None:
        self.token_ids = token_ids
        self.line_starts = starts = line_starts(token_ids, newline_token_ids)
        open_end = len(token_ids) > 0 and token_ids[-1] not in newline_token_ids
        self.num_complete_lines = len(starts) - 1 - open_end
        self.longest_line = 0
        # The numbers of the lines equal to line i, ascending; equal lines share one list.
        self._lines: list[list[int]] = []
        self._positions: dict[bytes, list[int]] = {}
        self._masks: dict[int, int] = {}
        for number in range(len(starts) - 1):
            line = token_ids[starts[number] : starts[number + 1]]
            self.longest_line = max(self.longest_line, len(line))
            positions = self._positions.setdefault(line.tobytes(), [])
            positions.append(number)
            self._lines.append(positions)

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 512 + 8 * len(self.token_ids) + 240 * len(self._lines)

    def find(self, line: "array[int]") -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to `line`, ascending."""
        return self._positions.get(line.tobytes(), ())

    def lines_equal_to(self, number: int) -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to line `number`, itself included."""
        return self._lines[number]

    def mask(self, numbers: Sequence[int]) -> int:
        """Returns an integer whose bit i is set for each line i of `numbers`, equal lines all."""
        if len(numbers) <= _FEW_OCCURRENCES:
            mask = 0
            for number in numbers:
                mask |= 1 << number
            return mask
        if numbers[0] not in self._masks:
            bits = bytearray(numbers[-1] // 8 + 1)
            for number in numbers:
                bits[number // 8] |= 1 << (number % 8)
            self._masks[numbers[0]] = int.from_bytes(bits, "little")
        return self._masks[numbers[0]]
