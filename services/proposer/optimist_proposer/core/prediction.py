"""A prediction, split into lines and ready to be searched for a line."""

from array import array
from collections.abc import Sequence, Set

from optimist_proposer.core.lines import INT32, line_starts

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
        "_first_equal",
        "_masks",
        "_numbers",
        "_repeated",
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
        # Flat containers and few: the garbage collector walks those of all requests.
        self._numbers: dict[bytes, int] = {}
        self._first_equal = array(INT32)
        self._repeated: dict[int, list[int]] = {}
        self._masks: dict[int, int] = {}
        for number in range(len(starts) - 1):
            line = token_ids[starts[number] : starts[number + 1]]
            self.longest_line = max(self.longest_line, len(line))
            first = self._numbers.setdefault(line.tobytes(), number)
            self._first_equal.append(first)
            if first != number:
                self._repeated.setdefault(first, [first]).append(number)

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 1024 + 8 * len(self.token_ids) + 150 * len(self._first_equal)

    def find(self, line: "array[int]") -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to `line`, ascending."""
        first = self._numbers.get(line.tobytes())
        return () if first is None else self._repeated.get(first, (first,))

    def lines_equal_to(self, number: int) -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to line `number`, itself included."""
        first = self._first_equal[number]
        return self._repeated.get(first, (first,))

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
