"""Predictions split into lines, and ready to be searched for a line."""

from array import array
from collections.abc import Sequence, Set

from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_proposer.core.lines import line_starts


class LineIndex:
    """The lines of all predictions, one behind the other; does not change.

    A separator ends a line as a newline does. So the last line of a prediction that does not end
    with a newline equals no line of the output, which has no separators.

    Attributes:
        identities: The number of the first line that is equal, for each line [num_lines].
        starts: Place where each line starts, and the end of the last [num_lines + 1].
        longest_line: Number of tokens of the longest line.
    """

    __slots__ = ("_numbers", "_repeated", "identities", "longest_line", "starts")

    def __init__(self, sources: Sources, newline_token_ids: Set[int]) -> None:
        predicted = sources.token_ids[: sources.num_predicted]
        self.starts = array(INT32, line_starts(predicted, newline_token_ids | {SEPARATOR}))
        self.longest_line = 0
        # Flat containers and few: the garbage collector walks those of all requests.
        self._numbers: dict[bytes, int] = {}
        self.identities = array(INT32)
        self._repeated: dict[int, array[int]] = {}
        for number in range(len(self.starts) - 1):
            line = predicted[self.starts[number] : self.starts[number + 1]]
            self.longest_line = max(self.longest_line, len(line))
            first = self._numbers.setdefault(line.tobytes(), number)
            self.identities.append(first)
            if first != number:
                self._repeated.setdefault(first, array(INT32, [first])).append(number)

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 512 + 150 * len(self.identities)

    def find(self, line: "array[int]") -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to `line`, ascending."""
        first = self._numbers.get(line.tobytes())
        return () if first is None else self._repeated.get(first, (first,))
